"""`dial-agent run`: plan, dry run, apply, verify, with Ollama's planner and coder and the real sandbox."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from tests.support.coding import CODER, PLANNER, plan, project, tree
from tests.support.ollama import ollama_peer
from tests.support.ollama_peer import MODEL

BROKEN = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n",
}
FIX = wants("fs_edit", path="calc.py", old_text="a - b", new_text="a + b")
FIXED = ("--verify", "grep -q 'a + b' calc.py")


async def test_a_dry_run_shows_models_and_plan_and_the_same_plan_is_carried_out_and_verified_later(
    tmp_path: Path,
) -> None:
    planned = plan("Read calc.py.", "Correct the sign.", prompt="Make add add.", tests=["pytest -q"])
    coding = (wants("fs_read", path="calc.py"), FIX, wants("plan_step_done", step=2), says("The sign is right now."))
    async with project(tmp_path, planned, *coding, files=BROKEN) as here:
        before = tree(here.folder)
        dry = await here.run("Repair add.")
        assert dry.code == 0, dry.err
        assert f"Planner     {PLANNER} (Ollama at 127.0.0.1:" in dry.out
        assert f"Executor    {CODER} (Ollama at 127.0.0.1:" in dry.out
        assert "  1. Read calc.py.\n  2. Correct the sign.\n" in dry.out
        assert "Dry run. Re-run with --apply to execute." in dry.out
        assert tree(here.folder) == before
        assert await here.requests(CODER) == []
        [asked] = await here.requests(PLANNER)
        assert asked["messages"][-1]["content"] == "Repair add.\n\nFiles of the project:\ncalc.py\ntest_calc.py"
        assert "tools" not in asked

        run_id = dry.out.split("--resume ")[1].split()[0]
        done = await here.run("", "--resume", run_id, "--apply")
        assert done.code == 0, done.out + done.err
        assert len(await here.requests(PLANNER)) == 1
        assert "Make add add.\n\nThe plan:\n1. Read" in (await here.requests(CODER))[0]["messages"][1]["content"]
        assert (here.folder / "calc.py").read_text() == "def add(a, b):\n    return a + b\n"
        assert "  [x] 2. Correct the sign.\n" in done.out
        assert "± 1 file changed, +1 −1" in done.out
        assert "-    return a - b\n+    return a + b\n" in done.out
        assert "Done in 3 step(s).\nLast message: The sign is right now.\n✓ Verified: 1 test passed.\n" in done.out
        assert f"{CODER}: " in done.out

        traces = (await here.agent("traces", "list", "--door", "coding")).out
        assert traces.count("trace_") == 2


@pytest.mark.fault("coding: nothing that could verify a run")
async def test_where_nothing_was_changed_a_plan_that_writes_has_failed_and_another_is_done(tmp_path: Path) -> None:
    edit = wants("fs_edit", path="calc.py", old_text="gone", new_text="a")
    reading = (plan(tests=["pytest"], writes=False), wants("fs_read", path="calc.py"), says("It subtracts."))
    async with project(tmp_path, plan(tests=["look at it"]), edit, says("Done."), *reading, files=BROKEN) as here:
        done = await here.run("Repair add.", "--apply", "--verify", "true")
        assert done.code == 1
        assert "✗ Not verified: nothing was changed." in done.out
        read = await here.run("What does add do?", "--apply")
        assert read.code == 0
        assert "Last message: It subtracts.\n✓ Nothing was changed, as planned.\n" in read.out


@pytest.mark.fault("coding: code, settings or files by which a failing test looks like one that passed")
@pytest.mark.system
async def test_a_changed_conftest_is_named_beside_the_verdict(tmp_path: Path) -> None:
    both = FIX & wants("fs_write", path="conftest.py", content="")
    async with project(tmp_path, plan(), both, says("Done."), files=BROKEN) as here:
        done = await here.run("Repair add.", "--apply")
        assert done.code == 0, done.out
        assert "✓ Verified: 1 test passed.\n! The run changed tests or what they depend on: conftest.py." in done.out


@pytest.mark.fault("coding: a coder that never ends")
@pytest.mark.fault("coding: `--apply` beside `DRY_RUN=1`")
@pytest.mark.system
async def test_the_limit_of_steps_is_exit_code_3_and_the_task_continues_with_the_steps_that_are_left(
    tmp_path: Path,
) -> None:
    first = (plan(), wants("fs_read", path="calc.py"), says("I ran out of steps."))
    then = (FIX, wants("fs_read", path="calc.py"), says("Out of steps again."), says("Done."), plan())
    async with project(tmp_path, *first, *then, files=BROKEN) as here:
        stronger = ("--max-steps", "1", "--coder-model", CODER)  # than the environment
        limited = await here.run("Repair add.", "--apply", *stronger, *FIXED, MAX_STEPS="20", CODER_MODEL="gone")
        assert limited.code == 3, limited.out
        assert "Step 1 of at most 1" in limited.out
        run_id = limited.out.split("tasks resume ")[1].split()[0]
        again = await here.agent("tasks", "resume", run_id, "--max-steps", "3", *here.sandbox)
        assert again.code == 3, again.out
        assert "Step 2 of at most 3" in again.out
        assert "✗ Stopped at the limit of 3 steps, not verified." in again.out
        done = await here.agent("tasks", "resume", run_id, *here.sandbox)
        assert done.code == 0, done.out
        last = (await here.requests(CODER))[-1]["messages"]
        said = [message["content"] for message in last if message["role"] == "user"]
        assert len(said) == 3
        assert "The work had ended (stopped at the limit of 3 steps, not verified) and goes on now." in said[-1]

        before = tree(here.folder)
        dry = await here.run("Repair add.", "--apply", DRY_RUN="1")
        assert dry.code == 0
        assert "! DRY_RUN is set: nothing is changed, whatever --apply says." in dry.out
        assert "Dry run." in dry.out
        assert tree(here.folder) == before


async def test_json_is_one_event_per_line_and_nothing_else(tmp_path: Path) -> None:
    async with project(tmp_path, plan("One.", tests=["pytest -q"]), FIX, says("Done."), files=BROKEN) as here:
        done = await here.run("Repair add.", "--apply", "--json", *FIXED)
        assert (done.code, done.err) == (0, "")
        events = done.events()
        kinds = [event["type"] for event in events if event["type"] != "stage_text"]
        assert kinds == [
            "started", "task_started", "plan", "step_started", *["stage_opened", "stage_closed"] * 2,
            "step_started", "text", "command_started", "command_ended", "changed", "task_ended", "finished",
        ]  # fmt: skip
        assert events[1] | {"planner": "", "coder": ""} == {
            "type": "task_started", "workspace": str(here.folder), "planner": "", "coder": "", "apply": True,
            "task": "Repair add.",
        }  # fmt: skip
        assert (events[-1]["status"], events[-1]["run_id"]) == ("finished", events[0]["run_id"])
        assert done.event("changed") == {"type": "changed", "files": 1, "added": 1, "removed": 1}
        end = done.event("task_ended")
        assert (end["result"], end["files"], end["tests"], end["steps"]) == ("verified", ["calc.py"], [], 1)
        assert end["tokens"].keys() == {PLANNER, CODER}
        assert "+    return a + b" in end["diff"]


@pytest.mark.fault("coding: a planner that writes prose, fences, template tokens or a plan as text")
@pytest.mark.system
async def test_a_planner_that_writes_prose_is_asked_once_more_and_no_third_time(tmp_path: Path) -> None:
    async with project(tmp_path, says("I would read it."), plan(), *[says("No."), says("No!")], files=BROKEN) as here:
        repaired = await here.run("Repair add.")
        assert repaired.code == 0
        first, second = await here.requests(PLANNER)
        said = second["messages"][len(first["messages"]) :]
        assert said[0]["content"] == "I would read it."
        assert "That is not the JSON object I asked for: there is no JSON object in it." in said[1]["content"]

        failed = await here.run("Repair add.")
        assert failed.code == 1
        assert "✗ The planner's answer is not a plan, also when asked again: there is no JSON object" in failed.out
        assert len(await here.requests(PLANNER)) == 4


@pytest.mark.fault("coding: the planner's key beside another host")
async def test_the_planners_key_goes_to_its_host_only_and_is_written_nowhere(tmp_path: Path) -> None:
    key = "planner-key-5f1c"
    models: dict[str, dict[str, Any] | None] = {f"{PLANNER}:latest": MODEL}
    async with (
        ollama_peer(plan(), models=models, key=key) as planner,
        project(tmp_path, FIX, says("Done."), files=BROKEN) as here,
    ):
        done = await here.run("Repair add.", "--apply", *FIXED, TURBO_HOST=planner.url, OLLAMA_API_KEY=key)
        assert done.code == 0, done.out + done.err
        sent = (await planner.seen()).requests
        assert sent
        assert all(request["headers"]["authorization"] == f"Bearer {key}" for request in sent)
        assert key not in json.dumps((await here.ollama.seen()).requests)
        assert key not in done.out + done.err
        assert not [path for path in here.home.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]


async def test_at_a_terminal_a_person_is_asked_and_the_run_goes_on_with_the_answers(tmp_path: Path) -> None:
    calls = wants("shell_run", cmd="rm -rf old.txt") & wants("shell_run", cmd="rm -rf calc.py")
    script = (plan(), calls, FIX, says("Done."))
    async with project(tmp_path, *script, files={**BROKEN, "old.txt": "old\n"}) as here:
        run = ("run", "Tidy up.", "--workspace", str(here.folder), "--apply", *FIXED, *here.sandbox)
        async with here.at_a_terminal(*run) as window:
            await window.wait_for("[no]")
            await window.send("yes\r")
            await window.wait_for("[no]", 2)
            await window.send("no because it is needed\r")
            assert await window.ended() == 0, window.text()
        assert window.shows("May I do this?", 2)
        assert not (here.folder / "old.txt").exists()
        assert "it is needed" in (await here.requests(CODER))[1]["messages"][-1]["content"]
        assert window.shows("Step 2 of at most 25")  # of its own steps, not of new ones


@pytest.mark.system
async def test_a_long_result_is_kept_and_read_again_when_the_run_goes_on(tmp_path: Path) -> None:
    files = {"log.txt": "".join(f"line {number}\n" for number in range(2_000))}
    short = {"AGENT_LIMITS__OFFLOAD_CHARS": "10000"}
    reading = (plan(), wants("fs_read", path="log.txt"), says("I have read it."))
    async with project(tmp_path, *reading, files=files) as here:
        first = await here.run("Read the log.", "--apply", "--json", "--verify", "false", **short)
        assert first.code == 1, first.err
        shortened = (await here.requests(CODER))[-1]["messages"][-1]["content"]
        assert "line 999\n" not in shortened
        address = re.findall(r"All of it is in (results/\S+):", shortened)[0]
        reading_on = wants("read_file_lines", file_url=address, first_line=1_000, last_line=1_000)
        models: dict[str, dict[str, Any] | None] = {f"{CODER}:latest": MODEL}
        async with ollama_peer(reading_on, says("Done."), models=models) as later:
            run_id = first.events()[0]["run_id"]
            await here.run("", "--resume", run_id, "--apply", "--verify", "true", **short, OLLAMA_LOCAL=later.url)
            assert (await later.seen()).bodies[-1]["messages"][-1][
                "content"
            ] == "1000: line 999\n[lines 1000-1000 of 2000]"
