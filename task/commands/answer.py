"""Turn the chunks of a DIAL answer into events: text, stages that open and close, attachments, the end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError

from task.conversation.messages import Attachment
from task.conversation.state import waits
from task.llm.sse import DONE


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
            yield AnswerFailed("The answer broke off before its end.")

    def _chunk(self, payload: bytes) -> list[AnswerEvent]:
        try:
            chunk = _Chunk.model_validate_json(payload)
        except ValidationError:
            return [AnswerFailed("What came is not a DIAL answer.")]
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
