"""How a coding run looks: in a narrow terminal, without colours, redirected; and what typed answers mean."""

import io
import re

import pytest
from rich.cells import cell_len

from task.coding.report import TerminalOutput
from task.runs.events import (
    CommandEnded,
    CommandStarted,
    Noted,
    PlanReady,
    PlanStepDone,
    RunEvent,
    RunFinished,
    RunStarted,
    RunText,
    StageClosed,
    StageOpened,
    StageText,
    StepStarted,
    TaskEnded,
    TaskStarted,
    WorkspaceChanged,
)

LONG = "Rename the function that reads the configuration, in every module that calls it and in the documentation."
DIFF = "--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-old\n+new \x1b]0;title\x07 \u202e\n"
EVENTS: tuple[RunEvent, ...] = (
    RunStarted("code_1", None, None, "coder", 0),
    TaskStarted(LONG, "/home/somebody/projects/a-long-name/with/many/parts", "planner", "coder", True),
    Noted("DRY_RUN is set: nothing is changed, whatever --apply says, and this sentence is long."),
    PlanReady((LONG, "Run the tests."), ("pytest tests/test_a_module_with_a_long_name.py::test_a_long_name",), "x"),
    StepStarted(1, 25),
    RunText("I will read\n"),
    RunText("the file \x1b[31mfirst."),
    StageOpened(1, None, "fs_read: a/long/path"),
    StageText(1, "## Request"),
    StageClosed(1, "fs_read: a/long/path/to/some/module_with_a_very_long_name.py [0.01s]", "completed"),
    StageClosed(2, "shell_run: pytest\n-q [12.30s]", "failed"),
    PlanStepDone(1),
    PlanStepDone(9),
    StageClosed(3, "plan_step_done 1 [0.00s]", "completed"),
    CommandStarted("verification", "python -m pytest -q"),
    CommandEnded("verification", "python -m pytest -q", 1, "E   assert 1 == 2\n" * 30, 2.0),
    WorkspaceChanged(3, 12, 4),
    TaskEnded(
        "code_1", "failed", "`python -m pytest -q` failed with exit code 1", 1, f"{LONG}\n{LONG}", DIFF, ("app.py",),
        ("test_app.py",), {"coder": (12_345, 678)}, 61.0, "trace_1",
    ),
    RunFinished("failed", "code_1", None, "trace_1", None),
)  # fmt: skip


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(out: io.StringIO, *events: RunEvent) -> str:
    output = TerminalOutput(out)
    for event in events:
        output.show(event)
    return out.getvalue()


def plainly(*events: RunEvent) -> str:
    """The text in a terminal, without its styles."""
    return re.sub(r"\x1b\[[0-9;]*m", "", shown(Terminal(), *events))


@pytest.mark.fault("coding: texts of a model that would steer the terminal")
def test_a_narrow_terminal_shows_a_checklist_the_step_and_what_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in (40, 60):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = plainly(*EVENTS)
        for line in text.splitlines():
            assert cell_len(line) <= columns or " " not in line.strip(), line
    for part in (
        "  [ ] 1. Rename the function that reads the configuration,\n         in every module",
        "  [ ] 2. Run the tests.\n",
        "Step 1 of at most 25\n  I will read\n",
        "  ✗ shell_run: pytest -q [12.30s]\n",
        "  [x] 1. Rename the function",
        "  ± 3 files changed, +12 −4\n",
        "Done in 1 step(s).\nLast message: Rename the function",
        "✗ `python -m pytest -q` failed with exit code 1.\n! The run changed",
        "coder: 12,345 tokens in, 678 out · 61 s · code_1\n",
        "Take it back: dial-agent tasks undo code_1\nGo on: dial-agent tasks resume code_1\n",
    ):
        assert part in text, part
    assert "plan_step_done" not in text
    assert text.count("assert 1 == 2") == 20
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert r"\x1b]0;title\x07 \u202e" in text


@pytest.mark.parametrize(("environ", "coloured"), [({"TERM": "xterm-256color"}, True), ({"NO_COLOR": "1"}, False)])
def test_colours_are_used_where_the_terminal_has_them(
    environ: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", **environ}.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[32m+new" in shown(Terminal(), *EVENTS)) is coloured


def test_redirected_nothing_is_wrapped_and_a_dry_run_names_the_command_that_carries_it_out() -> None:
    text = shown(io.StringIO(), *EVENTS)
    assert f"Task        {LONG}\n" in text
    assert DIFF in text
    assert "\x1b[3" not in text.replace("\\x1b", "")
    assert shown(io.StringIO(), TaskEnded("code_1", "planned", "", 0, "", "", (), ())) == (
        "\nDry run. Re-run with --apply to execute.\nThe same plan: dial-agent run --resume code_1 --apply\n"
        "0 s · code_1\n"
    )
