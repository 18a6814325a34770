"""Open and close the stages of an answer."""

from __future__ import annotations

import logging
from enum import StrEnum

from task.conversation.sinks import ChoiceSink, StageSink

logger = logging.getLogger(__name__)


class StageStatus(StrEnum):
    """How a stage ended; equal, member by member, to `aidial_sdk.chat_completion.Status`."""

    # The SDK's own enum would pull its web framework under the loop, which knows no network.
    COMPLETED = "completed"
    FAILED = "failed"


class StageProcessor:
    """The life of a stage. Source: API reference, StageProcessor."""

    @staticmethod
    def open_stage(choice: ChoiceSink, name: str | None = None) -> StageSink:
        """A new stage of `choice`, already open."""
        stage = choice.create_stage(name)
        stage.open()
        return stage

    @staticmethod
    def close_stage_safely(stage: StageSink, *, failed: bool = False) -> None:
        """Close the stage COMPLETED or FAILED; never raises, so that it can stand in any `finally`."""
        try:
            stage.close(StageStatus.FAILED if failed else StageStatus.COMPLETED)
        except Exception:
            logger.warning("a stage could not be closed", exc_info=True)
