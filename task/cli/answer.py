"""Turn the chunks of a DIAL answer into events: text, stages that open and close, attachments, the end."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from pydantic import BaseModel, ValidationError
from rich.console import Console
from rich.text import Text

from task.conversation.messages import Attachment
from task.conversation.state import PENDING_KEY, waits
from task.llm.chat_chunks import DONE
from task.runs.events import (
    Attached,
    AttachmentSaved,
    FinishReason,
    RunAsks,
    RunError,
    RunEvent,
    RunFinished,
    RunText,
    StageClosed,
    StageOpened,
    as_line,
)

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
    finish_reason: FinishReason | None = None


class _Error(BaseModel):
    message: str | None = None
    display_message: str | None = None


class _Chunk(BaseModel):
    choices: list[_Choice] = []
    error: _Error | None = None


@dataclass(slots=True)
class AnswerReader:
    """Folds chunk after chunk; a stage is an event when it has a name, and once more when it closes.

    `text` and `state` are what a chat keeps of the answer.
    """

    text: str = ""
    state: dict[str, Any] | None = None
    _names: dict[int, str] = field(default_factory=dict[int, str])
    _ended: bool = False

    async def events(self, payloads: AsyncIterable[bytes]) -> AsyncIterator[RunEvent]:
        """Every event of the answer; the last one is RunFinished or RunError."""
        async for payload in payloads:
            if payload == DONE:
                break
            for event in self._chunk(payload):
                yield event
                if isinstance(event, RunError):
                    return
        if not self._ended:
            yield failed("The answer was interrupted before its end.")

    def _chunk(self, payload: bytes) -> list[RunEvent]:
        try:
            chunk = _Chunk.model_validate_json(payload)
        except ValidationError:
            return [failed("The response is not a DIAL answer.")]
        if chunk.error is not None:
            message = chunk.error.display_message or chunk.error.message
            return [failed(message or "The answer failed without a reason.")]
        return [event for choice in chunk.choices for event in self._choice(choice)]

    def _choice(self, choice: _Choice) -> list[RunEvent]:
        custom = choice.delta.custom_content or _CustomContent()
        events = [event for stage in custom.stages or () for event in self._stage(stage)]
        if choice.delta.content:
            self.text += choice.delta.content
            events.append(RunText(choice.delta.content))
        if custom.state is not None:
            self.state = custom.state
            if waits(self.state):
                # The question itself is the end of the text.
                asked = [{name: item.get(name) for name in ("call_id", "code")} for item in self.state[PENDING_KEY]]
                events.append(RunAsks(asked, ""))
        events += [Attached(None, item.as_dict()) for item in custom.attachments or ()]
        if choice.finish_reason and not self._ended:
            self._ended = True
            events.append(RunFinished("finished", "", None, None, choice.finish_reason))
        return events

    def _stage(self, stage: _Stage) -> list[RunEvent]:
        events: list[RunEvent] = []
        before = self._names.get(stage.index, "")
        name = self._names[stage.index] = before + (stage.name or "")
        if name and not before:
            events.append(StageOpened(stage.index, stage.parent_stage_index, name))
        if stage.status:
            events.append(StageClosed(stage.index, name, "failed" if stage.status.lower() == "failed" else "completed"))
        return events


def failed(message: str) -> RunError:
    """The event of an answer that fails with this message."""
    return RunError({"message": message})


class AnswerOutput(Protocol):
    """Where the events of an answer go; `decision` is what a person replies to a question, None without a person."""

    def show(self, event: RunEvent) -> None: ...
    async def decision(self) -> str | None: ...


class TerminalOutput:
    """The answer's text on stdout as it arrives; stages, attachments and errors on stderr."""

    def __init__(self, out: TextIO | None = None, *, saves: bool = False) -> None:
        self._out = out or sys.stdout
        self._console = Console(stderr=True, highlight=False)
        self._saves = saves
        self._line_open = False
        self._stages: dict[int | None, tuple[int, float]] = {}  # depth and start of each

    def show(self, event: RunEvent) -> None:
        match event:
            case RunText(text):
                self._out.write(text.translate(UNSAFE) if self._out.isatty() else text)
                self._out.flush()
                self._line_open = not text.endswith("\n")
            case StageOpened(stage, parent, name):
                depth = self._stages[parent][0] + 1 if parent in self._stages else 0
                self._stages[stage] = depth, time.monotonic()
                self._aside(f"{'  ' * depth}▸ {name}", "dim")
            case StageClosed(stage, name, status):
                depth, since = self._stages.get(stage, (0, time.monotonic()))
                # The agent ends its titles with the time it measured itself.
                took = "" if name.endswith("]") else f" [{time.monotonic() - since:.2f}s]"
                mark, style = ("✗ FAILED", "red") if status == "failed" else ("✓", "dim green")
                self._aside(f"{'  ' * depth}{mark} {name}{took}", style)
            case Attached(_, item):
                kind = f" ({item['type']})" if item.get("type") else ""
                place = item.get("url") or item.get("reference_url") or ""
                hint = "" if self._saves or item.get("reference_url") else "; --save FOLDER saves it"
                self._aside(f"📎 {item.get('title') or 'attachment'}{kind} {place}".rstrip() + hint, "cyan")
            case AttachmentSaved(title, url, path):
                self._aside(f"saved {title or url or 'attachment'}: {path}", "green")
            case RunError(error):
                self._aside(error["message"], "red")
            case _:
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

    def show(self, event: RunEvent) -> None:
        self._out.write(json.dumps(as_line(event), ensure_ascii=False) + "\n")
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
