"""Keep a streaming answer from leaking data: addresses that the model made up become plain text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from task.conversation.links import Suspicion
from task.conversation.markup import MARKED
from task.conversation.sanitizer import Defanger
from task.conversation.sinks import ChoiceSink, StageSink


class _Filter:
    def __init__(self, append: Callable[[str], None], suspicion: Suspicion) -> None:
        self._append = append
        self._defanger = Defanger(suspicion)
        self._quiet = False

    def append(self, content: str) -> None:
        # Almost every piece of an answer takes this path: measured in tests/benchmarks/bench_gate.py.
        if (
            self._quiet
            and MARKED(content) is None
            and ("w" not in content or (len(content) > 2 and "ww" not in content))
        ):
            self._append(content)
            return
        self._shown(self._defanger.feed(content))

    def pause(self) -> None:
        """Show a held-back mark at the end of the text, before something else is shown."""
        self._shown(self._defanger.pause())

    def close(self) -> None:
        self._shown(self._defanger.feed("", last=True))

    def _shown(self, text: str) -> None:
        self._quiet = self._defanger.quiet
        if text:
            self._append(text)


class DefangedStage:
    """A stage whose text goes through a `Defanger`: a call's arguments are written by the model too."""

    def __init__(self, stage: StageSink, suspicion: Suspicion) -> None:
        self._stage, self._suspicion = stage, suspicion
        self._content: _Filter | None = None
        self.open = stage.open
        self.append_name = stage.append_name
        self.add_attachment = stage.add_attachment

    def append_content(self, content: str) -> None:
        if self._content is None:
            self._content = _Filter(self._stage.append_content, self._suspicion)
        self._content.append(content)

    def create_stage(self, name: str | None = None) -> StageSink:
        return DefangedStage(self._stage.create_stage(name), self._suspicion)

    def close(self, status: Any = None) -> None:
        if self._content is not None:
            self._content.close()
        if status is None:
            self._stage.close()
        else:
            self._stage.close(status)


class DefangedChoice:
    """A choice whose texts go through `Defanger`s, those of its stages included; `close` it when the answer ends."""

    def __init__(self, choice: ChoiceSink, suspicion: Suspicion) -> None:
        self._choice, self._suspicion = choice, suspicion
        self._content = _Filter(choice.append_content, suspicion)
        self._reasoning = _Filter(choice.append_reasoning_content, suspicion)
        self.append_content = self._content.append
        self.append_reasoning_content = self._reasoning.append
        self.add_attachment = choice.add_attachment
        self.set_state = choice.set_state

    def create_stage(self, name: str | None = None) -> StageSink:
        self._content.pause()
        return DefangedStage(self._choice.create_stage(name), self._suspicion)

    def close(self) -> None:
        """Show the text that was held back."""
        self._reasoning.close()
        self._content.close()
