"""Small real tools for tests of the loop."""

from collections.abc import Awaitable, Callable
from typing import Any

from task.conversation.messages import Message
from task.permissions.decisions import Effect
from task.permissions.taint import Origin
from task.tools.base import BaseTool, ToolSpec
from task.tools.models import ToolCallParams

OBJECT: dict[str, Any] = {"type": "object", "properties": {}}


class MadeTool(BaseTool):
    """A tool around a coroutine function of its arguments."""

    def __init__(
        self,
        name: str,
        work: Callable[..., Awaitable[str | Message]],
        shape: dict[str, Any] = OBJECT,
        tool_effects: frozenset[Effect] = frozenset(),
        seconds: float | None = None,
        *,
        described: str = "",
        origin: Origin | None = None,
    ) -> None:
        self.work = work
        description = described or f"Does what {name} does."
        self.spec = ToolSpec(name, description, shape, tool_effects, origin, timeout=seconds)

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        return await self.work(**(tool_call_params.arguments or {}))


def answering(name: str, text: str, **options: Any) -> MadeTool:
    async def work(**_: Any) -> str:
        return text

    return MadeTool(name, work, **options)
