"""Show an answer as it arrives: for people on two streams, or as JSON lines for programs."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from typing import Protocol, TextIO

from rich.console import Console
from rich.text import Text

from task.commands.answer import (
    AnswerEnded,
    AnswerEvent,
    AnswerFailed,
    ApprovalAsked,
    AttachmentSaved,
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
    AttachmentSaved: "saved",
}
_SHORT_REPLIES = {"": "deny", "y": "yes", "n": "no"}


class AnswerOutput(Protocol):
    """Where the events of an answer go; `decision` is what a person replies to a question, None without a person."""

    def show(self, event: AnswerEvent) -> None: ...
    async def decision(self) -> str | None: ...


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
                self._out.write(text.translate(UNSAFE) if self._out.isatty() else text)
                self._out.flush()
                self._line_open = not text.endswith("\n")
            case StageOpened(_, name, depth):
                self._aside(f"{'  ' * depth}▸ {name}", "dim")
            case StageClosed(_, name, depth, seconds, failed):
                # The agent ends its titles with the time it measured itself.
                took = "" if name.endswith("]") else f" [{seconds:.2f}s]"
                mark, style = ("✗ FAILED", "red") if failed else ("✓", "dim green")
                self._aside(f"{'  ' * depth}{mark} {name}{took}", style)
            case Attachment():
                kind = f" ({event.type})" if event.type else ""
                text = f"📎 {event.title or 'attachment'}{kind} {event.url or event.reference_url or ''}".rstrip()
                hint = "" if self._saves or event.reference_url else "; --save DIR keeps it"
                self._aside(text + hint, "cyan")
            case AttachmentSaved(title, url, path):
                self._aside(f"saved {title or url or 'attachment'}: {path}", "green")
            case AnswerFailed(message):
                self._aside(message, "red")
            case AnswerEnded() | ApprovalAsked():
                self._end_line()

    async def decision(self) -> str | None:
        if not (sys.stdin.isatty() and self._out.isatty()):
            return None
        self._console.print(Text("approve, always, or deny because …? [deny] ", "bold"), end="")
        line = await _typed_line(sys.stdin)
        return _SHORT_REPLIES.get(line.strip().lower(), line.strip()) if line else None

    def _aside(self, text: str, style: str) -> None:
        if self._out.isatty():
            self._end_line()
        self._console.print(Text(text.translate(UNSAFE), style), soft_wrap=True)

    def _end_line(self) -> None:
        if self._line_open:
            self._out.write("\n")
            self._out.flush()
            self._line_open = False


class JsonOutput:
    """One JSON object per line and event on stdout."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout

    def show(self, event: AnswerEvent) -> None:
        fields = event.as_dict() if isinstance(event, Attachment) else asdict(event)
        self._out.write(json.dumps({"event": NAMES[type(event)], **fields}, ensure_ascii=False) + "\n")
        self._out.flush()

    async def decision(self) -> str | None:
        return None


async def _typed_line(terminal: TextIO) -> str:
    # Not in a thread: one that waits for a line would keep an interrupted command from ending.
    ready, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(terminal.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(terminal.fileno())
    return terminal.readline()
