"""ToolRequestHandler: tool requests between the model's side and TEPS, in the documented shapes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from task.console.teps import TEPSManager
from task.console.ui_manager import PermissionAnswer
from task.conversation.messages import TOOL_RESULT
from task.store.records import Approval
from task.tools.aliases import FRAMEWORK

_ALIASES = {alias.tool: alias for alias in FRAMEWORK}


def request_of(approval: Approval) -> dict[str, Any]:
    """The documented ToolRequest of a stored question, under the tool's documented name."""
    alias = _ALIASES.get(approval.tool)
    theirs = {own: name for name, own in alias.arguments.items()} if alias is not None else {}
    return {
        "request_id": approval.call_id,
        "tool_name": alias.name if alias is not None else approval.tool,
        "parameters": {theirs.get(name, name): value for name, value in approval.arguments.items()},
        "icerc": dict(approval.card),
    }


class ToolRequestHandler:
    """Processes tool requests. Source: framework reference, Tool Request Handler."""

    def __init__(self, teps_manager: TEPSManager) -> None:
        self._teps = teps_manager

    def process_tool_request(self, tool_request: dict[str, Any]) -> dict[str, Any]:
        """Run the tool, after asking where the rules say so.

        Raises:
            ToolExecutionError: the request cannot be a call.
        """
        return self._teps.execute_tool(tool_request)

    def decide(
        self, approval: Approval, answered_elsewhere: Callable[[], bool] = lambda: False
    ) -> PermissionAnswer | None:
        """What the person says to the question of a suspended run; None: nothing in time, or not here.

        The arguments of the answer have the tool's own names.
        """
        request, alias = request_of(approval), _ALIASES.get(approval.tool)
        self._teps.request_permission(
            request["icerc"], request=request, code=approval.code, answered_elsewhere=answered_elsewhere
        )
        answer = self._teps.answer
        if answer is None or answer.arguments is None or alias is None:
            return answer
        own = {alias.arguments.get(name, name): value for name, value in answer.arguments.items()}
        return replace(answer, arguments=own)

    def format_tool_result_as_message(self, tool_result: dict[str, Any]) -> dict[str, Any]:
        """The result as a message of the history; results in the shape of the framework's first version too."""
        return {
            "role": TOOL_RESULT,
            "content": _text(tool_result),
            "timestamp": time.time(),
            "tool_name": str(tool_result.get("tool_name", "")),
            "tool_call_id": str(tool_result.get("request_id", "")),
        }


def _text(result: Mapping[str, Any]) -> str:
    if "status" in result:
        data = result.get("data") or {}
        if result["status"] == "success":
            return _json(data)
        return "User declined execution." if result["status"] == "declined_by_user" else f"Error: {_failure(data)}"
    if result.get("success", True):
        return _json(result.get("content"))
    shown = result.get("content")
    error = f"Error: {result.get('error') or 'the tool failed'}"
    return error if shown is None else f"{error}\n{_json(shown)}"


def _failure(data: Any) -> str:
    return str(data.get("error_message") or data) if isinstance(data, dict) else str(data)


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
