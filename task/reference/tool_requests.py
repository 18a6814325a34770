"""Tool requests and results in the shapes of the framework's reference, and in those of its first version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from task.approvals.approvals import DENIED
from task.conversation.messages import FunctionCall, Message, ToolCall
from task.errors import ToolExecutionError
from task.llm.accumulator import new_call_id

DECLINED = "User declined execution"
_FIRST_VERSION = {"executeBashCommand": "bash", "readFile": "file_read", "writeFile": "file_write"}
_ICERC = frozenset({"intent", "command", "expected_outcome", "risk_assessment"})
_SHAPED = frozenset({"shell_run", "fs_read", "fs_write"})  # whose results are JSON


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A documented ToolRequest, or one in the shape of the framework's first version, as a call."""

    request_id: str
    tool_name: str
    call: ToolCall

    @classmethod
    def read(cls, request: Mapping[str, Any]) -> ToolRequest:
        """Raises: ToolExecutionError: it has no tool, or its parameters are not a mapping."""
        name, parameters = request.get("tool_name"), request.get("parameters", {})
        if not isinstance(name, str) or not name:
            raise ToolExecutionError("A tool request names its tool: {'tool_name': 'file_read', 'parameters': {...}}.")
        if not isinstance(parameters, dict):
            raise ToolExecutionError(f"The parameters of {name} must be a mapping of names and values.")
        request_id = str(request.get("request_id") or new_call_id())
        brief = request.get("icerc", request.get("icerc_full_text"))
        given = cast("dict[str, Any]", parameters)
        arguments = {**given, "icerc": brief} if brief is not None and "icerc" not in given else given
        try:
            text = json.dumps(arguments, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise ToolExecutionError(f"The parameters of {name} are not JSON data: {error}.") from error
        return cls(request_id, name, ToolCall(request_id, FunctionCall(_FIRST_VERSION.get(name, name), text)))

    def shown(self, card: Mapping[str, Any]) -> dict[str, Any]:
        """The request in the documented shape, with the card that was computed in place of the model's own."""
        parameters = json.loads(self.call.function.arguments)
        parameters.pop("icerc", None)
        icerc = {name: value for name, value in card.items() if name in _ICERC}
        return {
            "request_id": self.request_id, "tool_name": self.tool_name, "parameters": parameters, "icerc": icerc,
        }  # fmt: skip


def result_of(request: ToolRequest, message: Message) -> dict[str, Any]:
    """The documented ToolResult of the answer to a request."""
    text = message.text()
    content, error = _content(message), None
    if message.failed:
        failed = isinstance(content, dict)
        error = f"The command ended with exit code {content['exit_code']}." if failed else _sentence(text)
        content = content if failed else None
    return {
        "request_id": request.request_id,
        "tool_name": request.tool_name,
        "success": not message.failed,
        "content": content,
        "error": error,
    }


def _content(message: Message) -> Any:
    text = message.text()
    if message.name in _SHAPED and text.startswith("{"):
        return json.JSONDecoder().raw_decode(text)[0]  # a note may follow
    return text


def _sentence(text: str) -> str:
    sentence = text.removeprefix("Error: ").removeprefix("ERROR: ")
    denied = f"This call was not allowed: {DENIED}"
    return f"{DECLINED}{sentence.removeprefix(denied)}" if sentence.startswith(denied) else sentence


def text_of(result: Mapping[str, Any]) -> str:
    """A ToolResult, or one in the shape of the framework's first version, as the model reads it."""
    if "status" in result:
        data = result.get("data") or {}
        if result["status"] == "success":
            return _json(data)
        return f"{DECLINED}." if result["status"] == "declined_by_user" else f"Error: {_failure(data)}"
    if result.get("success", True):
        return _json(result.get("content"))
    shown = result.get("content")
    error = f"Error: {result.get('error') or 'the tool failed'}"
    return error if shown is None else f"{error}\n{_json(shown)}"


def _failure(data: Any) -> str:
    return str(data.get("error_message") or data) if isinstance(data, dict) else str(data)


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
