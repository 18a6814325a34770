"""Turn the chunks of a DIAL answer into events: text, stages that open and close, attachments, the end."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TextIO

from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.text import Text

from task.conversation.messages import Attachment
from task.conversation.state import waits
from task.llm.sse import DONE

# A model may write anything; what would steer the terminal is not passed on to it.
UNSAFE = {code: None for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_SHORT_REPLIES = {"": "deny", "y": "yes", "n": "no"}


class _Stage(BaseModel):
    index: int
    parent_stage_index: int | None = None
    name: str | None = None
    status: str | None = None


class _CustomContent(BaseModel):
    attachments: list[Attachment] | None = None
    stages: list[_Stage] | None = None
    state: dict[str, Any] | None = None


class _Delta(BaseModel):
    content: str | None = None
    custom_content: _CustomContent | None = None


class _Choice(BaseModel):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Error(BaseModel):
    message: str | None = None
    display_message: str | None = None


class _Chunk(BaseModel):
    choices: list[_Choice] = []
    error: _Error | None = None


@dataclass(frozen=True, slots=True)
class TextPiece:
    text: str


@dataclass(frozen=True, slots=True)
class StageOpened:
    index: int
    name: str
    depth: int


@dataclass(frozen=True, slots=True)
class StageClosed:
    """`name` is the stage's whole title; `seconds` were measured here."""

    index: int
    name: str
    depth: int
    seconds: float
    failed: bool


@dataclass(frozen=True, slots=True)
class ApprovalAsked:
    """The answer ends with a question: whether so many calls may run."""

    calls: int


@dataclass(frozen=True, slots=True)
class AnswerFailed:
    message: str


@dataclass(frozen=True, slots=True)
class AnswerEnded:
    reason: str


@dataclass(frozen=True, slots=True)
class AttachmentSaved:
    """A file of the answer was written to `path`."""

    title: str | None
    url: str | None
    path: str


AnswerEvent = (
    TextPiece | StageOpened | StageClosed | Attachment | ApprovalAsked | AnswerFailed | AnswerEnded | AttachmentSaved
)


@dataclass(slots=True)
class _OpenStage:
    depth: int
    since: float
    name: str = ""
    reported: bool = False


@dataclass(slots=True)
class AnswerReader:
    """Folds chunk after chunk; a stage is an event when it has a name, and once more when it closes.

    `text` and `state` are what a chat keeps of the answer.
    """

    clock: Callable[[], float] = time.monotonic
    text: str = ""
    state: dict[str, Any] | None = None
    _stages: dict[int, _OpenStage] = field(default_factory=dict[int, _OpenStage])
    _ended: bool = False

    async def events(self, payloads: AsyncIterable[bytes]) -> AsyncIterator[AnswerEvent]:
        """Every event of the answer; the last one is AnswerEnded or AnswerFailed."""
        async for payload in payloads:
            if payload == DONE:
                break
            for event in self._chunk(payload):
                yield event
                if isinstance(event, AnswerFailed):
                    return
        if not self._ended:
            yield AnswerFailed("The answer was interrupted before its end.")

    def _chunk(self, payload: bytes) -> list[AnswerEvent]:
        try:
            chunk = _Chunk.model_validate_json(payload)
        except ValidationError:
            return [AnswerFailed("The response is not a DIAL answer.")]
        if chunk.error is not None:
            message = chunk.error.display_message or chunk.error.message
            return [AnswerFailed(message or "The answer failed without a reason.")]
        return [event for choice in chunk.choices for event in self._choice(choice)]

    def _choice(self, choice: _Choice) -> list[AnswerEvent]:
        custom = choice.delta.custom_content or _CustomContent()
        events = [event for stage in custom.stages or () for event in self._stage(stage)]
        if choice.delta.content:
            self.text += choice.delta.content
            events.append(TextPiece(choice.delta.content))
        if custom.state is not None:
            self.state = custom.state
            if calls := waits(self.state):
                events.append(ApprovalAsked(calls))
        events.extend(custom.attachments or ())
        if choice.finish_reason and not self._ended:
            self._ended = True
            events.append(AnswerEnded(choice.finish_reason))
        return events

    def _stage(self, stage: _Stage) -> list[AnswerEvent]:
        opened = self._stages.get(stage.index)
        if opened is None:
            parent = self._stages.get(-1 if stage.parent_stage_index is None else stage.parent_stage_index)
            opened = self._stages[stage.index] = _OpenStage(parent.depth + 1 if parent else 0, self.clock())
        opened.name += stage.name or ""
        events: list[AnswerEvent] = []
        if opened.name and not opened.reported:
            opened.reported = True
            events.append(StageOpened(stage.index, opened.name, opened.depth))
        if stage.status:
            seconds, failed = self.clock() - opened.since, stage.status.lower() == "failed"
            events.append(StageClosed(stage.index, opened.name, opened.depth, seconds, failed))
        return events


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
                hint = "" if self._saves or event.reference_url else "; --save FOLDER saves it"
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
        line = await typed_line(sys.stdin)
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


def discard_typed(terminal: TextIO) -> None:
    """Drop what was typed before a question is shown: it cannot be meant as its answer."""
    import termios

    with suppress(termios.error):
        termios.tcflush(terminal.fileno(), termios.TCIFLUSH)


async def typed_line(terminal: TextIO) -> str:
    """A line that a person types; empty at the end of the input."""
    # Not in a thread: one that waits for a line would keep an interrupted command from ending.
    ready, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(terminal.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(terminal.fileno())
    return terminal.readline()
