"""Keep an answer's stages readable: the first ones as they are, the others inside one."""

from __future__ import annotations

from typing import Any

from task.conversation.sinks import ChoiceSink, StageProcessor, StageSink

SHOWN = 2  # DIAL Chat shows three stages before it folds; the third one holds all others
TITLE = "Further steps"


class FoldedChoice:
    """A choice whose stages from the third on are sub-stages of one; everything else goes through."""

    def __init__(self, choice: ChoiceSink) -> None:
        self._choice = choice
        self._created = 0
        self._group: StageSink | None = None
        self.append_content = choice.append_content
        self.append_reasoning_content = choice.append_reasoning_content
        self.add_attachment = choice.add_attachment

    def create_stage(self, name: str | None = None) -> StageSink:
        self._created += 1
        if self._created <= SHOWN:
            return self._choice.create_stage(name)
        if self._group is None:
            self._group = StageProcessor.open_stage(self._choice, TITLE)
        return self._group.create_stage(name)

    def set_state(self, state: dict[str, Any]) -> None:
        self._choice.set_state(state)

    def close(self, *, failed: bool) -> None:
        """Close the stage that holds the others, if there is one."""
        if self._group is not None:
            StageProcessor.close_stage_safely(self._group, failed=failed)
