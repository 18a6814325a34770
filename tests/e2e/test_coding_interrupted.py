"""A coding run that is interrupted, by Ctrl-C or by a kill, in each of its phases; then resumed or undone."""

import asyncio
import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from task.llm.scripted import Pause, Reply, says, wants
from tests.support.coding import CODER, Project, plan, project, tree
from tests.support.waiting import until

WAIT = 60.0
LONG = 600  # seconds that an interrupted phase would take
FILES = {
    "app.py": "value = 1\n",
    "check.py": f"""\
import time
from pathlib import Path

waits, begun = Path("waits"), Path("begun")
if waits.exists() and not begun.exists():
    begun.touch()
    time.sleep({LONG})
assert Path("app.py").read_text() == "value = 2\\n"
""",
}
SLOW = f"import time\nfrom pathlib import Path\nPath('begun').touch()\ntime.sleep({LONG})\n"
EDIT = wants("fs_write", path="app.py", content="value = 2\n")
HANGS = Reply((Pause(LONG),))


@dataclass(frozen=True, slots=True)
class Phase:
    """The models' answers until the interruption and after the resumption. The moment is that of the last answer,
    which hangs, or, `in_command`, when a command has made the file `begun`. `calls` are all those of the coder."""

    answers: tuple[Reply, ...]
    then: tuple[Reply, ...]
    calls: Mapping[str, int]
    in_command: bool = False


PHASES = {
    "planning": Phase((HANGS,), (plan(), EDIT, says("Done.")), {"fs_write": 1}),
    "coding": Phase((plan(), EDIT, HANGS), (says("Done."),), {"fs_write": 1}),
    "a command": Phase(
        (plan(), wants("python_run", mode="snippet", code=SLOW)),
        (EDIT, says("Done.")),
        {"python_run": 1, "fs_write": 1},
        in_command=True,
    ),
    "verification": Phase(
        (plan(), EDIT & wants("fs_write", path="waits", content=""), says("Done.")),
        (says("Done."),),
        {"fs_write": 2},
        in_command=True,
    ),
}
IN_SAMPLE = {("a command", "SIGKILL")}  # the others are in `make test-system`
CASES = [
    pytest.param(phase, name, id=f"{name} in {phase}", marks=() if (phase, name) in IN_SAMPLE else pytest.mark.system)
    for phase in PHASES
    for name in ("SIGINT", "SIGKILL")
]


@pytest.mark.fault("coding: Ctrl-C or a kill while a run plans, codes, runs a command or verifies")
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("phase", "name"), CASES)
async def test_an_interrupted_run_is_resumed_to_its_end_and_then_undone(tmp_path: Path, phase: str, name: str) -> None:
    async with project(tmp_path, *PHASES[phase].answers, files=FILES) as found:
        before = tree(found.folder)
        run_id = await interrupted(found, PHASES[phase], name)
        await found.ollama.script(*PHASES[phase].then)

        resumed = await found.agent("tasks", "resume", run_id, "--apply", "--json", *found.sandbox)

        assert resumed.event("task_ended")["result"] == "verified", resumed.out + resumed.err
        assert (found.folder / "app.py").read_text() == "value = 2\n"
        # The coder knows each call that was made before: none of them is made once more because it was forgotten.
        messages = (await found.requests(CODER))[-1]["messages"]
        made = [call["function"]["name"] for message in messages for call in message.get("tool_calls", ())]
        results = [message["content"] for message in messages if message["role"] == "tool"]
        assert made == [name for name, times in PHASES[phase].calls.items() for _ in range(times)]
        assert any("interrupted" in result for result in results) is ("python_run" in made)
        finished = await found.agent("tasks", "undo", run_id)
        assert (finished.code, tree(found.folder)) == (0, before), finished.err


async def interrupted(found: Project, phase: Phase, name: str) -> str:
    """The id of a run that was interrupted in this phase."""
    verify = ("--verify", "python check.py")
    arguments = ("run", "Do it.", "--apply", "--workspace", str(found.folder), *verify, "--json", *found.sandbox)
    async with found.started(*arguments) as process:
        assert process.stdout is not None
        async with asyncio.timeout(WAIT):
            run_id = json.loads(await process.stdout.readline())["run_id"]
            if phase.in_command:
                await until((found.folder / "begun").exists)
            else:
                await found.ollama.seen(requests=len(phase.answers))
            process.send_signal(signal.Signals[name])
            await process.stdout.read()
            code = await process.wait()
    assert code == (130 if name == "SIGINT" else -signal.SIGKILL)
    return str(run_id)
