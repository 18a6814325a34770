"""The interface that an answer is written to while it streams; the DIAL SDK's Choice and Stage satisfy it."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Any, Protocol

logger = logging.getLogger(__name__)


class _Sink(Protocol):
    def append_content(self, content: str) -> None: ...
    def add_attachment(
        self,
        *,
        type: str | None = None,
        title: str | None = None,
        data: str | None = None,
        url: str | None = None,
        reference_url: str | None = None,
        reference_type: str | None = None,
    ) -> None: ...
    def create_stage(self, name: str | None = None) -> StageSink: ...


class StageSink(_Sink, Protocol):
    """One collapsible box under the answer. Append between `open` and `close` only; open and close once."""

    def open(self) -> None: ...
    def close(self, status: Any = ...) -> None: ...
    def append_name(self, name: str) -> None: ...


class ChoiceSink(_Sink, Protocol):
    """The answer itself: text, attachments, stages and the hidden state, which is set at most once."""

    def append_reasoning_content(self, content: str) -> None: ...
    def set_state(self, state: dict[str, Any]) -> None: ...


class StageStatus(StrEnum):
    """How a stage ended; equal, member by member, to `aidial_sdk.chat_completion.Status`."""

    # The SDK's own enum would pull its web framework under the loop, which knows no network.
    COMPLETED = "completed"
    FAILED = "failed"


class StageProcessor:
    """Opens and closes stages. Source: API reference, StageProcessor."""

    @staticmethod
    def open_stage(choice: ChoiceSink, name: str | None = None) -> StageSink:
        """A new stage of `choice`, already open."""
        stage = choice.create_stage(name)
        stage.open()
        return stage

    @staticmethod
    def close_stage_safely(stage: StageSink, *, failed: bool = False) -> None:
        """Close the stage COMPLETED or FAILED; never raises, so it is safe in any `finally`."""
        try:
            stage.close(StageStatus.FAILED if failed else StageStatus.COMPLETED)
        except Exception:
            logger.warning("a stage could not be closed", exc_info=True)
