"""ToolRequestHandler: tool requests between the model's side and TEPS, in the documented shapes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from task.console.teps import TEPSManager
from task.console.tool_requests import own_arguments, request_of, text_of
from task.conversation.messages import TOOL_RESULT
from task.conversation.replies import Answer
from task.store.records import Approval


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

    def decide(self, approval: Approval, answered_elsewhere: Callable[[], bool] = lambda: False) -> Answer | None:
        """What the person says to the question of a suspended run; None: nothing in time, or not here.

        The arguments of the answer have the tool's own names.
        """
        request = request_of(approval)
        self._teps.request_permission(
            request["icerc"], request=request, code=approval.code, answered_elsewhere=answered_elsewhere
        )
        answer = self._teps.answer
        if answer is None or answer.arguments is None:
            return answer
        return replace(answer, arguments=own_arguments(approval.tool, answer.arguments))

    def format_tool_result_as_message(self, tool_result: dict[str, Any]) -> dict[str, Any]:
        """The result as a message of the history; results in the shape of the framework's first version too."""
        return {
            "role": TOOL_RESULT,
            "content": text_of(tool_result),
            "timestamp": time.time(),
            "tool_name": str(tool_result.get("tool_name", "")),
            "tool_call_id": str(tool_result.get("request_id", "")),
        }
