"""An answer's text, stages and attachments as events of its run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from task.conversation.sinks import StageSink
from task.tools.dial_urls import file_id_of

Emit = Callable[..., Any]


class RunChoice:
    """Where a run writes its answer. Text of one step of the event loop becomes one event."""

    def __init__(self, emit: Emit) -> None:
        self._emit_now = emit
        self._waiting: list[str] = []
        self._numbers = count(1)

    def append_content(self, content: str) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append(content)

    def append_reasoning_content(self, content: str) -> None:
        self.emit("reasoning", text=content)

    def add_attachment(self, **attachment: str | None) -> None:
        self.attach(None, attachment)

    def create_stage(self, name: str | None = None) -> StageSink:
        return _Stage(self, name or "", None)

    def set_state(self, state: dict[str, Any]) -> None:
        """Nothing: the store keeps the state of a run."""

    def emit(self, kind: str, **data: Any) -> None:
        """Emit another event, after the text before it."""
        self.flush()
        self._emit_now(kind, **data)

    def attach(self, stage: int | None, attachment: dict[str, str | None]) -> None:
        fields = {name: value for name, value in attachment.items() if value is not None}
        if fields.get("url", "").startswith("files/"):
            fields["file_id"] = file_id_of(fields["url"])
        self.emit("attachment", stage=stage, attachment=fields)

    def number(self) -> int:
        return next(self._numbers)

    def flush(self) -> None:
        if self._waiting:
            text = "".join(self._waiting)
            self._waiting.clear()
            self._emit_now("text", text=text)


class _Stage:
    def __init__(self, choice: RunChoice, name: str, parent: int | None) -> None:
        self._choice, self._name, self._parent = choice, name, parent
        self._number = choice.number()

    def open(self) -> None:
        self._choice.emit("stage_opened", stage=self._number, parent=self._parent, name=self._name)

    def close(self, status: Any = "completed") -> None:
        self._choice.emit("stage_closed", stage=self._number, name=self._name, status=str(status))

    def append_name(self, name: str) -> None:
        self._name += name

    def append_content(self, content: str) -> None:
        self._choice.emit("stage_text", stage=self._number, text=content)

    def add_attachment(self, **attachment: str | None) -> None:
        self._choice.attach(self._number, attachment)

    def create_stage(self, name: str | None = None) -> StageSink:
        return _Stage(self._choice, name or "", self._number)
