"""`dial-agent tasks`: what was run is listed, shown and taken back; one run at a time in one folder."""

import asyncio
import json
from pathlib import Path

import pytest

from task.cli.run import OWNER
from task.llm.scripted import Pause, Reply, says, wants
from task.runs.request import state_of
from tests.support.coding import Project, plan, project, tree
from tests.support.stores import opened, sqlite_url

pytestmark = pytest.mark.timeout(300)
FILES = {"app.py": "value = 1\n", "keep.py": "keep = 1\n"}
EDIT = wants("fs_write", path="app.py", content="value = 2\n") & wants("fs_write", path="new.py", content="new = 1\n")
ANSWERS = (plan("Read.", "Write."), EDIT, says("Done."))


async def applied(found: Project, *options: str) -> str:
    """The id of a run that has changed the project; without a sandbox nothing is verified."""
    finished = await found.run("Set the value.", "--apply", "--json", *options)
    return str(finished.events()[0]["run_id"])


@pytest.mark.system
async def test_a_run_is_listed_shown_traced_and_taken_back(tmp_path: Path) -> None:
    async with project(tmp_path, *ANSWERS, files=FILES) as found:
        (found.folder / "node_modules").mkdir()
        before = tree(found.folder)
        run_id = await applied(found)

        [listed] = json.loads((await found.agent("tasks", "list", "--json")).out)
        assert (listed["run_id"], listed["task"], listed["steps"]) == (run_id, "Set the value.", 1)
        shown = json.loads((await found.agent("tasks", "show", run_id, "--json")).out)
        assert shown["plan"] == ["Read.", "Write."]
        assert shown["changes"][0] == {"path": "app.py", "added": 1, "removed": 1}
        assert "-value = 1\n+value = 2\n" in shown["diff"]
        assert (await found.agent("traces", "list", "--door", "coding")).out.count("finished") == 2

        (found.folder / "app.py").write_text("value = 3\n")
        refused = await found.agent("tasks", "undo", run_id)
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith("Nothing was undone: others have changed app.py since the run.")

        forced = await found.agent("tasks", "undo", "--force", cwd=found.folder)
        assert "2 paths" in forced.out
        assert forced.out.endswith("Not looked into: node_modules.\n")
        assert tree(found.folder) == before
        resumed = await found.agent("tasks", "resume", run_id)
        assert (resumed.code, resumed.err) == (2, f"the run {run_id} was undone; start a new one\n")


@pytest.mark.fault("coding: a second run in one folder, or in a folder of it")
@pytest.mark.system
async def test_a_second_run_in_the_folder_and_the_undoing_of_one_in_progress_are_refused(tmp_path: Path) -> None:
    hangs = Reply((Pause(600),))
    async with project(tmp_path, ANSWERS[0], hangs, ANSWERS[0], files=FILES) as found:
        arguments = ("run", "Set the value.", "--apply", "--json", "--workspace", str(found.folder))
        async with found.started(*arguments) as first:
            assert first.stdout is not None
            async with asyncio.timeout(60):
                run_id = json.loads(await first.stdout.readline())["run_id"]
            await found.ollama.seen(requests=2)

            second = await found.run("Another task.", "--apply", "--json")
            assert second.code == 1
            assert second.event("task_ended")["reason"].startswith("Another coding run works in")
            undo = await found.agent("tasks", "undo", run_id)
            assert undo.code == 1
            assert "Another coding run works in" in undo.err


async def test_a_task_is_a_run_that_is_followed_and_stopped_from_elsewhere(tmp_path: Path) -> None:
    async with project(tmp_path, ANSWERS[0], EDIT, Reply((Pause(600),)), files=FILES) as found:
        url = sqlite_url(tmp_path / "data")
        command = ("run", "Set the value.", "--apply", "--json", "--workspace", str(found.folder), *found.sandbox)
        async with found.started(*command, AGENT_STORE__URL=url) as process:
            assert process.stdout is not None
            async with asyncio.timeout(60):
                run_id = json.loads(await process.stdout.readline())["run_id"]
                await found.ollama.seen(requests=3)
                async with opened(url, chores=False) as store:
                    await store.runs.request_cancel(OWNER, run_id)
                    events = [event async for event in store.runs.events_after(OWNER, run_id)]
                    run = await store.runs.get(OWNER, run_id)
                    assert (await store.runs.list(OWNER)).items == ()  # answers only
                await process.stdout.read()
                assert await process.wait() == 130
    state = state_of(run, events)
    assert state is not None
    assert (run.status, run.kind, run.folder) == ("cancelled", "coding", str(found.folder))
    kept = [event.data for event in events if event.type == "checkpoint"]
    assert [data["start"] for data in kept] == [True, False, False, False, False]
    assert "fs_write" in json.dumps([data["request"] for data in kept])
    assert next(event.data for event in events if event.type == "task_ended")["files"] == ["app.py", "new.py"]


@pytest.mark.fault("coding: a setup that fails half way")
@pytest.mark.system
async def test_what_a_setup_that_failed_has_made_is_undone(tmp_path: Path) -> None:
    setup = "from pathlib import Path\nPath('made').touch()\nraise SystemExit(1)\n"
    async with project(tmp_path, ANSWERS[0], files={**FILES, "setup.py": setup}) as found:
        before = tree(found.folder)
        run_id = await applied(found, "--setup", "python setup.py", "--yes", "--unsafe-no-sandbox")
        assert (found.folder / "made").exists()
        assert (await found.agent("tasks", "undo", run_id)).code == 0
        assert tree(found.folder) == before


@pytest.mark.fault("coding: an unknown run, one in progress, or one that was undone")
@pytest.mark.fault("coding: settings that a run left in the folder")
async def test_an_unknown_run_is_named_and_a_setting_in_the_folder_leads_to_no_other_store(tmp_path: Path) -> None:
    async with project(tmp_path, files=FILES | {".env": "AGENT_STORE__URL=sqlite:///evil/store.db\n"}) as found:
        unknown = await found.agent("tasks", "show", "code_00000000")
        assert (unknown.code, unknown.err) == (2, "there is no run 'code_00000000'\n")
        nothing = await found.agent("tasks", "undo", cwd=found.folder)
        assert nothing.code == 2
        assert "No run has changed this folder" in nothing.err
        listed = await found.agent("tasks", "list", cwd=found.folder)
        assert listed.out == "There are no coding tasks.\n"
        assert "AGENT_STORE__URL" in listed.err
        assert not (found.folder / "evil").exists()
