"""Small real tools for tests of the loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from task.conversation.messages import Message
from task.permissions.decisions import Effect
from task.tools.base import BaseTool
from task.tools.models import ToolCallParams

OBJECT: dict[str, Any] = {"type": "object", "properties": {}}


@dataclass(eq=False)
class MadeTool(BaseTool):
    """A tool around a coroutine function of its arguments."""

    tool_name: str
    work: Callable[..., Awaitable[str | Message]]
    shape: dict[str, Any] = field(default_factory=lambda: OBJECT)
    tool_effects: frozenset[Effect] = frozenset()
    seconds: float | None = None

    @property
    def name(self) -> str:
        return self.tool_name

    @property
    def description(self) -> str:
        return f"Does what {self.tool_name} does."

    @property
    def parameters(self) -> dict[str, Any]:
        return self.shape

    @property
    def effects(self) -> frozenset[Effect]:
        return self.tool_effects

    @property
    def timeout(self) -> float | None:
        return self.seconds

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        return await self.work(**(tool_call_params.arguments or {}))


def answering(name: str, text: str, **options: Any) -> MadeTool:
    async def work(**_: Any) -> str:
        return text

    return MadeTool(name, work, **options)
