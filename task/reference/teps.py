"""TEPSManager: runs tools for a program, and asks the user at the terminal where the rules say so.

Requests and results have the shapes of the framework's reference, or of its first version.
"""

import json
import re
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Self, cast

from task.approvals.approvals import DENIED, Approvals
from task.closing import in_own_thread, run_blocking
from task.console.configuration import teps_tree
from task.console.conversation import OWNER, decided
from task.console.ui_manager import UserInterfaceManager
from task.conversation.inputs import Answer
from task.conversation.messages import TOOL_RESULT, FunctionCall, Message, ToolCall, assistant
from task.errors import SettingsError, TEPSInitError, ToolExecutionError
from task.llm.base import new_call_id
from task.permissions.decisions import Effect, PermissionMode
from task.permissions.gate import Grants
from task.permissions.names import own_name
from task.permissions.taint import Origin
from task.product.framework import ConsoleProduct, console_product
from task.product.profile import CONSOLE
from task.runs.answering import RunChoice
from task.runs.request import RunCaller
from task.runs.traces import TraceStart, recorded
from task.tools.base import FRAMEWORK, BaseTool, ToolSpec
from task.tools.models import ToolCallParams
from task.tools.offload import Offloader
from task.tools.toolbox import Pending, Toolbox, named

CONVERSATION = "teps"
NO_ANSWER = "no answer came within {seconds:g} s, or no user was there to give one"
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
    def read(cls, request: Mapping[str, Any]) -> Self:
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
        return {"request_id": self.request_id, "tool_name": self.tool_name, "parameters": parameters, "icerc": icerc}


class ToolHandlerInterface(ABC):
    """A tool of a program's own. Source: framework reference, ToolHandlerInterface.

    Its docstring is its description, `parameters` its JSON Schema; unless `effects` say less it is assumed to write, to
    execute and to reach other machines, so that the user is asked.
    """

    parameters: ClassVar[Mapping[str, Any]] = {"type": "object", "properties": {}}
    effects: frozenset[Effect] = frozenset({Effect.WRITE, Effect.EXECUTE, Effect.NETWORK})

    @abstractmethod
    def execute(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Run the tool; the result is JSON data."""


class HandlerTool(BaseTool):
    """A program's handler as a tool like any other."""

    def __init__(self, handler: ToolHandlerInterface, registered: str) -> None:
        self.handler = handler
        description = (type(handler).__doc__ or registered).strip()
        parameters = dict(handler.parameters)
        self.spec = ToolSpec(registered, description, parameters, handler.effects, origin=Origin.OUTSIDE)

    async def _execute(self, tool_call_params: ToolCallParams) -> str:
        arguments = tool_call_params.arguments or {}
        result = await in_own_thread(self.handler.execute, parameters=arguments)
        return json.dumps(result, ensure_ascii=False, default=str)


class TEPSManager:
    """Tool Execution & Permission Service. Source: framework reference, TEPS Manager.

    Its product is made from the configuration there is with `teps_settings` for its `teps`, and works in the current
    folder. `answer` is what the user last answered; None: nothing in time, or no user was there.
    """

    def __init__(self, teps_settings: dict[str, Any], *, ui: UserInterfaceManager | None = None) -> None:
        self._teps_settings, self._caller = teps_settings, RunCaller(OWNER)
        self._ui, self._owns_ui = ui or UserInterfaceManager(), ui is None
        self._grants, self._asking = Grants(time.time), Lock()
        self._product: ConsoleProduct | None = None
        self.answer: Answer | None = None

    def initialize(self) -> None:
        """Check what the settings say about tools.

        Raises:
            TEPSInitError: they cannot be used; one line with the fix.
        """
        try:
            self._product = run_blocking(console_product, teps_tree(self._teps_settings), Path.cwd())
        except (SettingsError, OSError) as error:
            raise TEPSInitError(str(error)) from error

    def register_handler(self, name: str, handler: ToolHandlerInterface) -> None:
        """Let the handler run under this name, beside the other tools and through the same gate.

        Raises:
            TEPSInitError: there is such a tool.
        """
        handlers = self.product.tools.handlers
        if own_name(name) in named(run_blocking(self._tools, "")):
            raise TEPSInitError(f"there is already a tool {name!r}; register the handler under another name")
        handlers.append(HandlerTool(handler, name))

    def execute_tool(self, tool_request: dict[str, Any]) -> dict[str, Any]:
        """The documented ToolResult of a ToolRequest; a refusal, a no and a tool's failure are results too.

        Raises:
            ToolExecutionError: the request has no tool or no parameters, or the service is not initialised.
        """
        request = ToolRequest.read(tool_request)
        outcome = run_blocking(self._called, request.call)
        if isinstance(outcome, Pending):
            outcome = self._decided(request, outcome)
        return result_of(request, outcome)

    def request_permission(self, icerc_data: dict[str, Any], request: Mapping[str, Any] | None = None) -> bool:
        """Whether the user at the terminal allows what this card describes; `answer` has the whole answer.

        No answer in `teps.confirmation_seconds`, or no terminal, is a no.
        """
        self.answer = answer = decided(self._ui, self.product, icerc_data, request or {})
        return answer is not None and answer.allowed

    def shutdown(self) -> None:
        """Close what `initialize` has opened."""
        if self._owns_ui:
            self._ui.close()
        product, self._product = self._product, None
        if product is not None:
            run_blocking(product.close)

    @property
    def product(self) -> ConsoleProduct:
        """Raises: ToolExecutionError: `initialize` was not called."""
        if self._product is None:
            raise ToolExecutionError("TEPS is not initialised; call initialize() first.")
        return self._product

    def _decided(self, request: ToolRequest, asked: Pending) -> Message:
        card = {**asked.card.displayed(), "reason": asked.reason, "grant_description": asked.grant_description}
        call, teps = request.call, self.product.settings.teps
        with self._asking:  # of several threads' questions each has its own answer
            self.request_permission(card, request.shown(card))
            answer = self.answer or Answer(False, NO_ANSWER.format(seconds=teps.confirmation_seconds))
        if answer.allowed and answer.arguments is not None:
            call = replace(call, function=FunctionCall(call.name, json.dumps(dict(answer.arguments))))
            changed = run_blocking(self._called, call)
            if isinstance(changed, Message):
                return changed  # it needs no permission, or it is refused
            asked = changed
        outcome = run_blocking(self._called, call, (asked, answer))
        assert isinstance(outcome, Message)  # it was just decided
        return outcome

    async def _called(self, call: ToolCall, answered: tuple[Pending, Answer] | None = None) -> Message | Pending:
        product = self.product
        profile = product.profile
        approvals = Approvals(profile.rules, self._caller.owner, CONVERSATION, self._grants)
        if answered is not None:
            asked, answer = answered
            approvals.take(call.id, asked.call.name, asked.digest, answer)  # the call may use an alias
        gate = approvals.gate(PermissionMode.DEFAULT)
        seconds, asked = profile.limits.tool_seconds, assistant(None, (call,))
        toolbox = Toolbox(await self._tools(call.name), gate, Offloader(None, sys.maxsize), seconds, aliases=FRAMEWORK)
        start = TraceStart(self._caller.owner, CONSOLE, product.profile.model, asked=(asked,))
        async with recorded(product.services.store, start) as observer:
            ended, decision = observer.call_ended, observer.decided
            choice, caller = RunChoice(lambda _: None), self._caller.of_tools(CONVERSATION)
            [outcome] = await toolbox.call_all([call], choice, caller, messages=[asked], ended=ended, decided=decision)
        return outcome

    async def _tools(self, wanted: str) -> list[BaseTool]:
        product, caller = self.product, self._caller.of_tools(CONVERSATION)
        profile = product.profile
        own = [*await profile.own_tools(), *await profile.workspace_tools(caller)]
        names = named(own)
        if not wanted or wanted in names or own_name(wanted) in names:
            return own
        return [*own, *(await product.services.mcp.discover(caller, names)).tools]


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

    def format_tool_result_as_message(self, tool_result: dict[str, Any]) -> dict[str, Any]:
        """The result as a message of the history; results in the shape of the framework's first version too."""
        return {
            "role": TOOL_RESULT,
            "content": text_of(tool_result),
            "timestamp": time.time(),
            "tool_name": str(tool_result.get("tool_name", "")),
            "tool_call_id": str(tool_result.get("request_id", "")),
        }


def result_of(request: ToolRequest, message: Message) -> dict[str, Any]:
    """The documented ToolResult of the answer to a request."""
    content: Any = message.text()
    error = None
    if message.name in _SHAPED and content.startswith("{"):
        content = json.JSONDecoder().raw_decode(content)[0]  # a note may follow
    if message.failed and isinstance(content, dict):
        error = f"The command ended with exit code {content['exit_code']}."
    elif message.failed:
        error, content = re.sub(r"^(Error|ERROR): ", "", message.text()), None
        error = error.replace(f"This call was not allowed: {DENIED}", DECLINED, 1)
    named = {"request_id": request.request_id, "tool_name": request.tool_name}
    return {**named, "success": not message.failed, "content": content, "error": error}


def text_of(result: Mapping[str, Any]) -> str:
    """A ToolResult, or one in the shape of the framework's first version, as the model reads it."""
    if "status" in result:
        data = result.get("data") or {}
        if result["status"] == "success":
            return _json(data)
        if result["status"] == "declined_by_user":
            return f"{DECLINED}."
        return f"Error: {(data.get('error_message') or data) if isinstance(data, dict) else data}"
    if result.get("success", True):
        return _json(result.get("content"))
    shown = result.get("content")
    error = f"Error: {result.get('error') or 'the tool failed'}"
    return error if shown is None else f"{error}\n{_json(shown)}"


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
