"""The route that describes the tools: which are offered, how they do, and what their schemas cost."""

from __future__ import annotations

import asyncio
from typing import Any

from task.api.edge.failures import failures
from task.api.edge.schemas import ResponseModel
from task.api.service import CurrentCaller, CurrentService, router
from task.llm.window import schema_tokens
from task.telemetry.operations import ToolFigures
from task.tools.base import BaseTool


class ToolHealth(ResponseModel):
    """`calls`, `failed` and `mean_seconds` are since the start; nothing is counted where metrics are off."""

    name: str
    schema_tokens: int
    calls: int
    failed: int
    mean_seconds: float | None


class ServerIssue(ResponseModel):
    """A server whose tools are missing."""

    server: str
    reason: str


class ToolsHealth(ResponseModel):
    """The tools that answer, and the servers that do not."""

    tools: list[ToolHealth]
    issues: list[ServerIssue]
    schema_tokens: int


routes = router("Health")


@routes.get("/health/tools", response_model=ToolsHealth, responses=failures())
async def tools_health(service: CurrentService, _: CurrentCaller) -> Any:
    """The tools with their calls, failures, mean time and tokens of their schemas, and the servers that are down."""
    tools, issues = await service.product.offered()
    metrics = service.product.telemetry.metrics
    figures = await asyncio.to_thread(metrics.tools) if metrics is not None else {}
    return {
        "tools": [_described(tool, figures.get(tool.name, ToolFigures())) for tool in tools],
        "issues": [{"server": issue.server, "reason": issue.summary} for issue in issues],
        "schema_tokens": schema_tokens([tool.schema for tool in tools]),
    }


def _described(tool: BaseTool, figures: ToolFigures) -> dict[str, Any]:
    return {
        "name": tool.name, "schema_tokens": schema_tokens([tool.schema]), "calls": figures.calls,
        "failed": figures.failed, "mean_seconds": figures.seconds / figures.calls if figures.calls else None,
    }  # fmt: skip
