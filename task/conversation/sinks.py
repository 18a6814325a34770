"""The interface that an answer is written to while it streams; the DIAL SDK's Choice and Stage satisfy it."""

from __future__ import annotations

from typing import Any, Protocol


class StageSink(Protocol):
    """One collapsible box under the answer. Append between `open` and `close` only; open and close once."""

    def open(self) -> None: ...
    def close(self, status: Any = ...) -> None: ...
    def append_name(self, name: str) -> None: ...
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


class ChoiceSink(Protocol):
    """The answer itself: text, attachments, stages and the hidden state, which is set at most once."""

    def append_content(self, content: str) -> None: ...
    def append_reasoning_content(self, content: str) -> None: ...
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
    def set_state(self, state: dict[str, Any]) -> None: ...
