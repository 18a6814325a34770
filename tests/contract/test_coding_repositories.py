"""Small projects with a recorded coder: planned, left alone, changed, verified and undone; and done wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from task.llm.scripted import Reply, says, wants
from tests.support.coding import CODER, Project, plan, project, tree
from tests.support.up import Finished

REPOSITORIES = sorted(Path(__file__).with_name("coding").glob("*.yaml"))
IN_SAMPLE = ("data_script",)  # the others are in `make test-system`
DONE = "Done as planned."


def loaded(file: Path) -> dict[str, Any]:
    written = cast("dict[str, Any]", yaml.safe_load(file.read_text(encoding="utf-8")))
    return {"verify": None, "possible": True, **written}


def replies(steps: list[list[tuple[str, dict[str, Any]]]]) -> list[Reply]:
    """The coder's answers: the calls of each step, and then its last word."""
    found: list[Reply] = []
    for calls in steps:
        reply = Reply(())
        for name, arguments in calls:
            reply &= wants(name, **arguments)
        found.append(reply)
    return [*found, says(DONE)]


def last_event(finished: Finished) -> dict[str, Any]:
    assert finished.out, finished.err
    return finished.event("task_ended")


def passes(check: str, folder: Path) -> bool:
    """Whether the check, which is no part of the workspace, is content with it."""
    command = [sys.executable, "-B", "-c", check]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, timeout=60).returncode == 0


@pytest.mark.fault("coding: a coder that claims success")
@pytest.mark.fault("coding: a plausible wrong edit, or a task that cannot be done")
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, id=file.stem, marks=() if file.stem in IN_SAMPLE else pytest.mark.system)
        for file in REPOSITORIES
    ],
)
async def test_a_task_is_planned_carried_out_verified_and_undone_and_a_wrong_edit_is_not_taken_for_right(
    file: Path, tmp_path: Path
) -> None:
    scenario = loaded(file)
    planned = plan(*scenario["plan"], tests=scenario["tests"])
    answers = [planned, *replies(scenario["script"]), planned, *replies(scenario["wrong"])]
    async with project(tmp_path, *answers, files=scenario["files"]) as found:
        verify = ("--verify", scenario["verify"]) if scenario["verify"] else ()
        before, options = tree(found.folder), ["--json", *verify]

        run_id = await planned_only(found, scenario, options)
        assert tree(found.folder) == before

        applied = await found.run("", "--resume", run_id, "--apply", *options)
        ended = last_event(applied)
        assert (applied.code, ended["result"]) == ((0, "verified") if scenario["possible"] else (1, "failed")), ended
        assert ended["answer"] == DONE
        assert passes(scenario["check"], found.folder) == scenario["possible"]

        await undone(found, run_id)
        assert tree(found.folder) == before

        wrong = await found.run(scenario["task"], "--apply", *options)
        assert (wrong.code, last_event(wrong)["result"]) == (1, "failed"), wrong.out
        assert not passes(scenario["check"], found.folder)
        await undone(found, last_event(wrong)["run_id"])
        assert tree(found.folder) == before


async def planned_only(found: Project, scenario: dict[str, Any], options: list[str]) -> str:
    dry = await found.run(scenario["task"], *options)
    assert (dry.code, last_event(dry)["result"]) == (0, "planned"), dry.out + dry.err
    assert await found.requests(CODER) == []
    return str(last_event(dry)["run_id"])


async def undone(found: Project, run_id: str) -> None:
    finished = await found.agent("runs", "undo", run_id)
    assert finished.code == 0, finished.err
