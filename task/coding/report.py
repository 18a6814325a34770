"""Show a coding task: lines for the user at a terminal, or one JSON event per line."""

import asyncio
import json
import sys
import termios
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from rich.console import Console
from rich.text import Text

from task.approvals.approvals import typed_answer
from task.coding.executor import PLAN_STEP_DONE, deny_all
from task.conversation.inputs import Answer
from task.permissions.icerc import plain, visible
from task.runs.events import (
    Checkpoint,
    CommandEnded,
    CommandStarted,
    Noted,
    PlanReady,
    PlanStepDone,
    RunEvent,
    RunText,
    StageClosed,
    StepStarted,
    TaskEnded,
    TaskStarted,
    WorkspaceChanged,
    as_line,
)
from task.tools.toolbox import Pending

LABEL_WIDTH = 11
OUTPUT_LINES = 20  # of a command that failed
DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}
NO_TERMINAL = "Not approved: {title}. No user is there to ask; --yes approves what the coding rules leave to the user."


def print_json_line(event: RunEvent) -> None:
    """The event as one JSON object on a line of standard output."""
    if not isinstance(event, Checkpoint):
        print(json.dumps(as_line(event), separators=(",", ":")), flush=True)  # in ASCII: a terminal may read it


class TerminalOutput:
    """Plan, steps, changes and result as text, wrapped where it is a terminal; questions are asked there."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._terminal = self._out.isatty()
        self._console = Console(file=self._out, highlight=False, soft_wrap=True)
        self._plan: Sequence[str] = ()
        self._apply = False
        self._text = ""

    def show(self, event: RunEvent) -> None:
        if isinstance(event, RunText):
            self._text += event.text if event.type == "text" else ""
            return
        self._flush_text()
        match event:
            case TaskStarted():
                self._apply = event.apply
                self._row("Task", plain(event.task))
                self._row("Workspace", plain(event.workspace))
                self._row("Planner", plain(event.planner or "the plan was made before"))
                self._row("Executor", plain(event.coder))
                self._row("Apply", "yes" if event.apply else "no (dry run)")
            case PlanReady(plan, tests):
                self._plan, box = plan, "[ ] " * self._apply
                self._line("Plan", "bold", before=True)
                for number, step in enumerate(plan, 1):
                    self._line(f"{box}{number}. {plain(step)}", indent=2, hang=len(box) + 3)
                if tests:
                    self._line("Tests", "bold")
                for test in tests:
                    self._line(f"- {plain(test)}", indent=2)
            case Noted(text):
                self._line(f"! {plain(text)}", "yellow")
            case CommandStarted(purpose, command):
                self._line(f"{purpose.capitalize()}: {plain(command)}", "bold", before=True)
            case CommandEnded(code=0):
                self._line(f"✓ passed [{event.seconds:.1f}s]", "green", indent=2)
            case CommandEnded():
                self._line(f"✗ exit code {event.code} [{event.seconds:.1f}s]", "red", indent=2)
                for line in event.output.rstrip().splitlines()[-OUTPUT_LINES:]:
                    self._line(visible(line), "dim", indent=4)
            case StepStarted(step, limit):
                self._line(f"Step {step} of at most {limit}", "bold", before=True)
            case StageClosed(_, name, status) if status == "failed" or not name.startswith(PLAN_STEP_DONE):
                mark, style = ("✗", "red") if status == "failed" else ("✓", "green")
                self._line(f"{mark} {plain(name)}", style, indent=2)
            case PlanStepDone(step) if 1 <= step <= len(self._plan):
                self._line(f"[x] {step}. {plain(self._plan[step - 1])}", "bold green", indent=2, hang=7)
            case WorkspaceChanged(files, added, removed):
                counted = "1 file" if files == 1 else f"{files} files"
                self._line(f"± {counted} changed, +{added} −{removed}", "cyan", indent=2)
            case TaskEnded():
                self._ended(event)
            case _:
                pass

    async def ask(self, pending: Sequence[Pending]) -> Sequence[Answer]:
        self._flush_text()
        if not (sys.stdin.isatty() and self._terminal):
            for item in pending:
                self._line("! " + NO_TERMINAL.format(title=plain(item.title)), "yellow")
            return await deny_all(pending)
        answers = list[Answer]()
        for item in pending:
            with suppress(termios.error):  # what was typed before the question cannot be meant as its answer
                termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
            self._line("May I do this?", "bold yellow", before=True)
            for name, text in card_rows(item).items():
                self._row(name, text)
            self._console.print(Text("yes, always, or no because …? [no] ", "bold"), end="")
            line = await _typed_line(sys.stdin)
            answers.append(typed_answer(line) or Answer(False, line.strip()))
        return answers

    def _ended(self, event: TaskEnded) -> None:
        tokens = [f"{model}: {into:,} tokens in, {out:,} out" for model, (into, out) in event.tokens.items()]
        figures = " · ".join([*tokens, f"{event.seconds:.0f} s", event.run_id])
        if event.result == "planned":
            self._line("Dry run. Re-run with --apply to execute.", "bold", before=True)
            self._line(f"The same plan: dial-agent run --resume {event.run_id} --apply", "dim")
            self._line(figures, "dim")
            return
        if event.diff:
            self._line("Changes", "bold", before=True)
            for line in event.diff.rstrip("\n").split("\n"):
                if self._terminal:
                    self._console.print(Text(visible(line), DIFF_STYLES.get(line[:1], "")))
                else:  # unchanged: it may be meant for `git apply`
                    self._out.write(line + "\n")
        if event.steps or event.answer:
            self._line(f"Done in {event.steps} step(s).", "bold", before=True)
        if event.answer:
            self._row("Last message", visible(event.answer.strip()))
        good = event.result in ("verified", "unchanged")
        mark, style = ("✓", "bold green") if good else ("✗", "bold red")
        reason = plain(event.reason)
        self._line(f"{mark} {reason[:1].upper()}{reason[1:].rstrip('.')}.", style)
        if event.tests:
            names = ", ".join(map(plain, event.tests))
            self._line(f"! The run changed tests or what they depend on: {names}. Read them.", "bold yellow")
        self._line(figures, "dim")
        if event.files:
            self._line(f"Take it back: dial-agent tasks undo {event.run_id}", "dim")
        if not good:
            self._line(f"Go on: dial-agent tasks resume {event.run_id}", "dim")

    def _flush_text(self) -> None:
        text, self._text = self._text.strip(), ""
        for line in text.splitlines():
            self._line(visible(line), "dim", indent=2)

    def _row(self, label: str, text: str) -> None:
        first, *rest = text.splitlines() or [""]
        label = f"{label}:" if len(label) >= LABEL_WIDTH else label.ljust(LABEL_WIDTH)
        self._line(f"{label} {first}", hang=LABEL_WIDTH + 1)
        for line in rest:
            self._line(line, indent=LABEL_WIDTH + 1, hang=0)

    def _line(self, text: str, style: str = "", *, indent: int = 0, hang: int = 2, before: bool = False) -> None:
        if before:
            self._console.print()
        first, rest, width = " " * indent, " " * (indent + hang), max(self._console.width, 20)
        lines = [first + text]
        if self._terminal:
            wrapper = textwrap.TextWrapper(width, first, rest, replace_whitespace=False, break_on_hyphens=False)
            lines = wrapper.wrap(text) or [""]
        for line in lines:
            self._console.print(Text(line, style))


def card_rows(item: Pending) -> dict[str, str]:
    """A question's card by its labels: no command is cut at its end only, and nothing acts on the terminal."""
    rows = {**item.card.rows(), "Asked because": plain(item.reason), "Always": plain(item.grant_description)}
    return {name: text for name, text in rows.items() if text}


async def _typed_line(terminal: TextIO) -> str:
    # Not in a thread: one that waits for a line would keep an interrupted command from ending.
    ready, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(terminal.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(terminal.fileno())
    return terminal.readline()
