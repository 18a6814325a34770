"""The caller's own tools: offered to the model beside ours, and run by the caller."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from task.errors import ToolError
from task.permissions.decisions import CallRequest, Decision, Deferred, Gate
from task.permissions.icerc import ICERC
from task.permissions.taint import Origin
from task.tools.base import DescribedTool, ToolSpec
from task.tools.models import ToolCallParams

REASON = "the caller runs this tool"
NO_RESULT = (
    "Error: the program that runs this tool continued without its result. What the user wants now is in the next "
    "message."
)


class ClientTool(DescribedTool):
    """A function as the caller describes it; its arguments are the caller's business."""

    def __init__(self, function: Mapping[str, Any]) -> None:
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        self.spec = ToolSpec(function["name"], function.get("description") or "", parameters, origin=Origin.OUTSIDE)

    def _checked(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    async def _execute(self, tool_call_params: ToolCallParams) -> str:
        raise ToolError(f"{self.name} is run by the caller")


@dataclass(frozen=True, slots=True)
class ClientToolsGate:
    """Leaves the calls of the caller's tools to the caller, and all others to `gate`."""

    gate: Gate
    names: Collection[str]

    async def decide(self, request: CallRequest) -> Decision:
        if request.call.name in self.names:
            return Deferred(ICERC("", request.call.name, ""), "", REASON)
        return await self.gate.decide(request)
