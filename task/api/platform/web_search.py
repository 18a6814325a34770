"""`web_search(query, num_results=5)`: the search server's tool under the name the HTTP API documents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from task.conversation.messages import FunctionCall, Message
from task.permissions.decisions import Effect
from task.permissions.taint import Origin
from task.tools.base import BaseTool
from task.tools.models import ToolCallParams

SERVERS_NAME, NAME = "duckduckgo_web_search", "web_search"
MOST_RESULTS = 20


class WebSearchTool(BaseTool):
    """Searches the web with `search`, another tool."""

    def __init__(self, search: BaseTool) -> None:
        self._search = search

    @property
    def name(self) -> str:
        return NAME

    @property
    def description(self) -> str:
        return self._search.description

    @property
    def parameters(self) -> dict[str, Any]:
        number = {
            "type": "integer", "default": 5, "minimum": 1, "maximum": MOST_RESULTS,
            "description": "How many results to return.",
        }  # fmt: skip
        query = {"type": "string", "description": "What to search for."}
        return {"type": "object", "properties": {"query": query, "num_results": number}, "required": ["query"]}

    @property
    def effects(self) -> frozenset[Effect]:
        return self._search.effects

    @property
    def origin(self) -> Origin:
        return self._search.origin

    @property
    def timeout(self) -> float | None:
        return self._search.timeout

    async def _execute(self, tool_call_params: ToolCallParams) -> Message:
        given = tool_call_params.arguments or {}
        arguments = {"query": given["query"], "max_results": given["num_results"]}
        call = tool_call_params.tool_call
        made = replace(call, function=FunctionCall(SERVERS_NAME, json.dumps(arguments)))
        answer = await self._search.execute(replace(tool_call_params, tool_call=made, arguments=arguments))
        return replace(answer, name=NAME)


def with_web_search(tools: Sequence[BaseTool]) -> list[BaseTool]:
    """The tools, the server's search under its documented name."""
    return [WebSearchTool(tool) if tool.name == SERVERS_NAME else tool for tool in tools]
