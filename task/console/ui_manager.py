"""UserInterfaceManager: what a user at the terminal reads and types."""

from __future__ import annotations

import json
import os
import select
import sys
import termios
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from task.approvals.approvals import typed_answer
from task.console.terminal.answer import Look, RunView, attachment_line, heading
from task.console.terminal.rendering import (
    Colors,
    TerminalMarkdown,
    ansi,
    card,
    colors_of,
    decision,
    editable,
    edited,
    folded,
    safe,
)
from task.console.terminal.rendering import PermissionQuestion as PermissionQuestion
from task.conversation.inputs import Answer
from task.conversation.messages import Attachment
from task.errors import AgentError
from task.runs.events import AttachmentSaved, as_line, sent
from task.store.records import Event

if TYPE_CHECKING:
    from task.console.terminal.application import Terminal

EXPIRED = "No answer in time: it does not run."
ELSEWHERE = "Answered elsewhere."
EDITING = "JSON, Enter allows the call with it, an empty text goes back"
REPLIES = "y yes · n no, with a reason if you like · a always · e edit the arguments"
UNWRAPPED = 2_000  # columns, where no terminal is
WAITING_SECONDS = 0.25
UNNUMBERED = 0  # the number of an event that no run of this process numbers
Show = Callable[[Event], None]


class UserInterfaceManager:
    """Shows messages and reads input. Source: framework reference, UI Manager.

    Where input or output is not a terminal it writes plain text and asks nothing. The rest of the console sets its
    attributes: `complete` gives what may replace the last word of the text before the cursor, `status` the line below
    the input, `during_turn` takes the commands that are typed while a turn runs (in a thread of its own),
    `history_file` keeps the typed lines, `save` writes an attachment to a file. `plain`: write line by line at a
    terminal too.
    """

    def __init__(self, config: Mapping[str, Any] | None = None, *, plain: bool = False) -> None:
        self._look = Look(**{name: value for name, value in (config or {}).items() if name in Look.__slots__})
        self.debug_mode = self._look.debug_mode
        self.complete: Callable[[str], list[str]] = lambda text: []
        self.status: Callable[[], str] = lambda: ""
        self.during_turn: Callable[[str], object] | None = None
        self.history_file: Path | None = None
        self.save: Callable[[Attachment], Path | None] = lambda attachment: None
        self._colors: Colors = colors_of(os.environ, enabled=self._look.color_enabled)
        self._terminal: Terminal | None = None
        self._plain = plain

    @property
    def interactive(self) -> bool:
        """Whether a user is there to answer: input and output are a terminal."""
        return sys.stdin.isatty() and sys.stdout.isatty()

    def get_user_input(self) -> str:
        """What the user typed, which may have several lines.

        Raises:
            EOFError: Ctrl-D, or the end of the input.
            KeyboardInterrupt: Ctrl-C twice at the empty prompt.
        """
        terminal = self._drawn()
        if terminal is None:
            return input(self._look.prompt_symbol if self.interactive else "")
        text = terminal.read()
        if text.strip():
            self.display_user_message(text)
        return text

    def display_system_message(self, message: str) -> None:
        self._show(Text.assemble(*self._look.stamp(), (self._look.system_prefix, "cyan"), safe(message)))

    def display_user_message(self, message: str) -> None:
        text = safe(folded(message))
        self._show(Text.assemble("\n", *self._look.stamp(), (self._look.prompt_symbol, "bold cyan"), (text, "bold")))

    def display_assistant_message(self, message: str) -> None:
        if not self.interactive:
            _write(f"{safe(message)}\n")
            return
        for part in (Text(), *heading(self._look), TerminalMarkdown(message)):
            self._show(part)

    def display_error_message(self, error_type: str, error_message: str) -> None:
        kind = f"{safe(error_type)}: " if self.debug_mode and error_type else ""
        text = Text.assemble(*self._look.stamp(), (f"{self._look.error_prefix}{kind}{safe(error_message)}", "red"))
        self._show(text, error=True)

    def display_special_command_help(self, commands: Mapping[str, str]) -> None:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="bold", overflow="fold")
        table.add_column(ratio=1)
        for name, text in commands.items():
            table.add_row(Text(safe(name)), Text(safe(text)))
        self._show(table)

    @contextmanager
    def answering(self) -> Generator[Show]:
        """Show the events of a run while the block runs: each is given, in its order, from any thread."""
        terminal, answer = self._drawn(), RunView(self._look, lambda: self.debug_mode)
        if terminal is not None:
            terminal.begin(answer)
            show, end = terminal.post, terminal.end
        else:
            show, end = self._plain_answer(answer)
        try:
            yield show
        finally:
            end()
        for attachment in answer.attachments:
            self._show_file(attachment)

    def _plain_answer(self, answer: RunView) -> tuple[Show, Callable[[], None]]:
        # The answer's text as it arrives; everything around it goes to standard error.
        before, line_open = self._look.assistant_prefix if self.interactive else "", False

        def show(event: Event) -> None:
            nonlocal before, line_open
            if event.type == "text":
                _write(before + safe(event.data["text"]))
                before, line_open = "", not event.data["text"].endswith("\n")
                return
            answer.show(event)
            for part in answer.finished():
                end()
                self._show(part, error=True)

        def end() -> None:
            nonlocal line_open
            if line_open:
                _write("\n")
            line_open = False

        return show, end

    def ask_permission(
        self, question: PermissionQuestion, seconds: float, answered_elsewhere: Callable[[], bool]
    ) -> Answer | None:
        """The user's answer; None: none in time, no user to ask, or it was answered elsewhere."""
        if not self.interactive or answered_elsewhere():
            return None
        self._discard_typed()
        deadline, ended = time.monotonic() + seconds, ""

        def is_open() -> bool:
            nonlocal ended
            ended = ELSEWHERE if answered_elsewhere() else EXPIRED if time.monotonic() >= deadline else ended
            return not ended

        def typed(what: str, default: str = "") -> str | None:
            def prompt() -> str:
                left = max(0, round(deadline - time.monotonic()))
                return f"{what} ({f'{left} s' if left < 120 else f'{left // 60} min'}) "

            return self._line(prompt, default, is_open)

        def with_changes() -> Answer | None:
            text: str | None = editable(question.request.get("parameters") or {})
            self._show(Text(EDITING, "dim"))
            while (text := typed("edit", text)) and text.strip():
                try:
                    return Answer(True, arguments=edited(text))
                except ValueError as error:
                    self._show(Text(str(error), "red"))
            return None

        for part in (Text(), card(question), Text(REPLIES, "dim")):
            self._show(part)
        while (reply := typed("[y/n/a/e]")) is not None:
            wants_changes = reply.strip().lower() in ("e", "edit")
            answer = with_changes() if wants_changes else typed_answer(reply)
            if answer is not None:
                self._show(decision(answer, question.grant))
                return answer
            if not wants_changes:
                self._show(Text(REPLIES, "dim"))
        self._show(Text(ended, "yellow"))
        return None

    def type_line(self, prompt: str) -> str | None:
        """What the user types after this prompt; None at the end of the input."""
        self._discard_typed()
        return self._line(lambda: prompt, "", lambda: True)

    def close(self) -> None:
        """Give the terminal back."""
        if self._terminal is not None:
            self._terminal.close()

    def _discard_typed(self) -> None:
        if self._drawn() is None:
            termios.tcflush(sys.stdin, termios.TCIFLUSH)  # lines typed before the question do not answer it

    def _line(self, prompt: Callable[[], str], default: str, wait: Callable[[], bool]) -> str | None:
        terminal = self._drawn()
        if terminal is not None:
            return terminal.ask(prompt, default, wait)
        _write(f"{safe(default)}\n{prompt()}" if default else prompt())
        while wait():
            if select.select([sys.stdin], [], [], WAITING_SECONDS)[0]:
                line = sys.stdin.readline()
                return line.rstrip("\n") if line else None
        return None

    def _show_file(self, attachment: Attachment) -> None:
        try:
            path = self.save(attachment)
        except AgentError as error:
            path = None
            self.display_error_message("Attachment Error", str(error))
        self.display_attachment(attachment, path)

    def display_attachment(self, attachment: Attachment, path: Path | None) -> None:
        """Show an attachment of an answer, and the file in which it was saved."""
        place = str(path or attachment.url or attachment.reference_url or "")
        self._show(attachment_line(attachment, place), error=not self.interactive)

    def _drawn(self) -> Terminal | None:
        # A terminal that can move its cursor, once it is needed.
        if self._plain or not self.interactive or os.environ.get("TERM", "dumb") in ("", "dumb", "unknown"):
            return None
        if self._terminal is None:
            from task.console.terminal.application import Terminal  # which other doors do not need

            self._terminal = Terminal(self._colors, self._look.prompt_symbol, self)
        return self._terminal if self._terminal.alive else None

    def _show(self, part: RenderableType, *, error: bool = False) -> None:
        terminal = self._terminal
        if terminal is not None and terminal.alive:
            terminal.post(part)
        elif self.interactive:
            _write(ansi(part, get_terminal_size().columns, self._colors), error=error)
        else:
            _write(ansi(part, UNWRAPPED, None), error=error)


class JsonUserInterface(UserInterfaceManager):
    """Writes each event of a run, each message and each saved file as one JSON object per line, and asks nothing."""

    @property
    def interactive(self) -> bool:
        return False

    def _plain_answer(self, answer: RunView) -> tuple[Show, Callable[[], None]]:
        def show(event: Event) -> None:
            line = sent(event)
            if event.number == UNNUMBERED:
                del line["id"]
            self._write(line)
            if event.type == "attachment":
                answer.show(event)

        return show, lambda: None

    def display_system_message(self, message: str) -> None:
        self._write({"type": "message", "role": "system", "text": message})

    def display_user_message(self, message: str) -> None:
        self._write({"type": "message", "role": "user", "text": message})

    def display_assistant_message(self, message: str) -> None:
        self._write({"type": "message", "role": "assistant", "text": message})

    def display_error_message(self, error_type: str, error_message: str) -> None:
        self._write({"type": "error", "error": {"message": error_message}})

    def display_special_command_help(self, commands: Mapping[str, str]) -> None:
        self._write({"type": "commands", "commands": dict(commands)})

    def display_attachment(self, attachment: Attachment, path: Path | None) -> None:
        if path is not None:
            self._write(as_line(AttachmentSaved(attachment.title, attachment.url, str(path))))

    def _write(self, line: Mapping[str, Any]) -> None:
        print(json.dumps(line), flush=True)  # in ASCII: a terminal acts on some other characters


def _write(text: str, *, error: bool = False) -> None:
    stream = sys.stderr if error else sys.stdout
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "replace").decode(encoding))  # a pipe may take ASCII only
    stream.flush()
