"""Small projects with a recorded coder: planned, left alone, changed, verified and undone; and done wrong."""

import subprocess
import sys
from functools import reduce
from operator import and_
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from task.llm.scripted import Reply, says, wants
from tests.support.coding import CODER, Project, plan, project, tree

REPOSITORIES = sorted(Path(__file__).with_name("coding").glob("*.yaml"))
IN_SAMPLE = ("data_script",)  # the others are in `make test-system`
DONE = "Done as planned."


def loaded(file: Path) -> dict[str, Any]:
    written = cast("dict[str, Any]", yaml.safe_load(file.read_text(encoding="utf-8")))
    return {"verify": None, "possible": True, **written}


def replies(steps: list[list[tuple[str, dict[str, Any]]]]) -> list[Reply]:
    """The coder's answers: the calls of each step, and then its last word."""
    made = [reduce(and_, [wants(name, **arguments) for name, arguments in calls]) for calls in steps]
    return [*made, says(DONE)]


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

        dry = await found.run(scenario["task"], *options)
        planned_only = dry.event("task_ended")
        assert (dry.code, planned_only["result"]) == (0, "planned"), dry.out + dry.err
        assert await found.requests(CODER) == []
        assert tree(found.folder) == before

        applied = await found.run("", "--resume", planned_only["run_id"], "--apply", *options)
        ended = applied.event("task_ended")
        assert (applied.code, ended["result"]) == ((0, "verified") if scenario["possible"] else (1, "failed")), ended
        assert ended["answer"] == DONE
        assert passes(scenario["check"], found.folder) == scenario["possible"]

        await undone(found, planned_only["run_id"])
        assert tree(found.folder) == before

        wrong = await found.run(scenario["task"], "--apply", *options)
        assert (wrong.code, wrong.event("task_ended")["result"]) == (1, "failed"), wrong.out
        assert not passes(scenario["check"], found.folder)
        await undone(found, wrong.event("task_ended")["run_id"])
        assert tree(found.folder) == before


async def undone(found: Project, run_id: str) -> None:
    finished = await found.agent("runs", "undo", run_id)
    assert finished.code == 0, finished.err
