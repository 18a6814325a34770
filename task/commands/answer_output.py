"""Show an answer while it is made: for people on two streams, or as JSON lines for programs."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.text import Text

from task.commands.answer import (
    AnswerEnded,
    AnswerEvent,
    AnswerFailed,
    ApprovalAsked,
    StageClosed,
    StageOpened,
    TextPiece,
)
from task.conversation.messages import Attachment

# A model may write anything; what would steer the terminal is not passed on to it.
UNSAFE = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
NAMES = {
    TextPiece: "text",
    StageOpened: "stage_opened",
    StageClosed: "stage_closed",
    Attachment: "attachment",
    ApprovalAsked: "approval_asked",
    AnswerFailed: "error",
    AnswerEnded: "end",
}


_SHORT = {"": "deny", "y": "yes", "n": "no"}


class AnswerOutput(Protocol):
    """Where the events of an answer go, and files that were saved from it.

    `decision` is what a person at the terminal replies to a question; None: there is nobody to ask.
    """

    def show(self, event: AnswerEvent) -> None: ...
    async def decision(self) -> str | None: ...
    def saved(self, attachment: Attachment, path: str) -> None: ...
    def failed(self, message: str) -> None: ...


class TerminalOutput:
    """The answer's text on stdout as it arrives; stages, attachments and errors on stderr."""

    def __init__(self, out: TextIO | None = None, *, saves: bool = False) -> None:
        self._out = out or sys.stdout
        self._console = Console(stderr=True, highlight=False)
        self._saves = saves
        self._line_open = False

    def show(self, event: AnswerEvent) -> None:
        match event:
            case TextPiece(text):
                self._text(text)
            case StageOpened(_, name, depth):
                self._aside(f"{'  ' * depth}▸ {name}", "dim")
            case StageClosed():
                self._aside(*_closing(event))
            case Attachment():
                self._aside(self._attachment(event), "cyan")
            case AnswerFailed(message):
                self.failed(message)
            case AnswerEnded() | ApprovalAsked():
                self._end_line()

    async def decision(self) -> str | None:
        if not (sys.stdin.isatty() and self._out.isatty()):
            return None
        self._console.print(Text("approve, always, or deny because …? [deny] ", "bold"), end="")
        line = await _typed_line(sys.stdin)
        return _SHORT.get(line.strip().lower(), line.strip()) if line else None

    def saved(self, attachment: Attachment, path: str) -> None:
        self._aside(f"saved {attachment.title or attachment.url or 'attachment'}: {path}", "green")

    def failed(self, message: str) -> None:
        self._aside(message, "red")

    def _text(self, text: str) -> None:
        self._out.write(text.translate(UNSAFE) if self._out.isatty() else text)
        self._out.flush()
        self._line_open = not text.endswith("\n")

    def _aside(self, text: str, style: str) -> None:
        if self._out.isatty():
            self._end_line()
        self._console.print(Text(text.translate(UNSAFE), style), soft_wrap=True)

    def _end_line(self) -> None:
        if self._line_open:
            self._out.write("\n")
            self._out.flush()
            self._line_open = False

    def _attachment(self, attachment: Attachment) -> str:
        title = attachment.title or "attachment"
        kind = f" ({attachment.type})" if attachment.type else ""
        where = attachment.url or attachment.reference_url or ""
        hint = "" if self._saves or attachment.reference_url else "; --save DIR keeps it"
        return f"📎 {title}{kind} {where}".rstrip() + hint


class JsonOutput:
    """One JSON object per line and event on stdout."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def show(self, event: AnswerEvent) -> None:
        fields = event.as_dict() if isinstance(event, Attachment) else asdict(event)
        self._line(NAMES[type(event)], fields)

    async def decision(self) -> str | None:
        return None

    def saved(self, attachment: Attachment, path: str) -> None:
        self._line("saved", {"title": attachment.title, "url": attachment.url, "path": path})

    def failed(self, message: str) -> None:
        self._line("error", {"message": message})

    def _line(self, event: str, fields: dict[str, Any]) -> None:
        self._out.write(json.dumps({"event": event, **fields}, ensure_ascii=False) + "\n")
        self._out.flush()


async def _typed_line(terminal: TextIO) -> str:
    # Not in a thread: one that waits for a line would keep an interrupted command from ending.
    ready, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(terminal.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(terminal.fileno())
    return terminal.readline()


def _closing(stage: StageClosed) -> tuple[str, str]:
    # The agent ends its titles with the time it measured itself.
    timed = stage.name.endswith("]")
    took = "" if timed else f" [{stage.seconds:.2f}s]"
    mark, style = ("✗ FAILED", "red") if stage.failed else ("✓", "dim green")
    return f"{'  ' * stage.depth}{mark} {stage.name}{took}", style
