"""A tool has one name; a documented alias is how a door offers it, and leads to it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from task.conversation.messages import FunctionCall, Message, Role, ToolCall, user
from task.llm.scripted import ScriptedModel, says, wants
from task.loop import LoopObserver, RunOutcome, ToolLoop
from task.permissions.decisions import Allowed, CallRequest, Decision
from task.tools.base import WEB_SEARCH
from task.tools.calculator.calculator_tool import CalculatorTool
from task.tools.declare import tool
from task.tools.models import Effect
from task.tools.toolbox import Toolbox
from tests.support.choices import CALLER, RecordingChoice

SEARCH, ALIAS = "duckduckgo_web_search", "web_search"


@tool(effects={Effect.READ, Effect.NETWORK})
def duckduckgo_web_search(query: str, max_results: int = 5) -> str:
    """Search the web."""
    return f"{max_results} results for {query}"


class NamesAsked:
    """Notes the name and the arguments of each call it decides about."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def decide(self, request: CallRequest) -> Decision:
        self.asked.append((request.call.name, dict(request.arguments)))
        return self.decision


class CallsSeen(LoopObserver):
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def call_ended(self, call: ToolCall, message: Message, seconds: float) -> None:
        self.calls.append((call.name, call.function.arguments))


async def run(model: ScriptedModel, toolbox: Toolbox, observer: CallsSeen, *before: Message) -> RunOutcome:
    messages = [*before, user("?")]
    return await ToolLoop(model, toolbox, observer=observer).run(messages, RecordingChoice(), CALLER)


def schema_names(model: ScriptedModel) -> list[str]:
    return [item["function"]["name"] for item in model.tools[-1]]


@pytest.mark.parametrize(
    "call", [wants(ALIAS, query="otters", num_results=2), wants(SEARCH, query="otters", max_results=2)]
)
@pytest.mark.parametrize("aliases", [(), (WEB_SEARCH,)])
async def test_either_name_runs_the_tool_and_is_decided_and_recorded_under_its_own(aliases: Any, call: Any) -> None:
    gate, observer = NamesAsked(Allowed("test")), CallsSeen()
    toolbox = Toolbox([duckduckgo_web_search, CalculatorTool()], gate, aliases=aliases)
    model = ScriptedModel(call, says("done"))
    outcome = await run(model, toolbox, observer)
    asked, result, _ = outcome.added
    assert result.text() == "2 results for otters"
    assert gate.asked == [(SEARCH, {"query": "otters", "max_results": 2})]
    assert [(name, json.loads(text)) for name, text in observer.calls] == gate.asked
    assert ([item.name for item in asked.tool_calls], result.name) == ([SEARCH], SEARCH)


async def test_the_model_sees_one_name_in_its_tools_and_in_the_conversation() -> None:
    call = ToolCall("c1", FunctionCall(SEARCH, '{"query": "seals", "max_results": 3}'))
    before = [
        user("Seals?"), Message(Role.ASSISTANT, "", tool_calls=(call,)),
        Message(Role.TOOL, "3 results for seals", tool_call_id="c1", name=SEARCH), Message(Role.ASSISTANT, "Three."),
    ]  # fmt: skip
    model = ScriptedModel(says("done"))
    toolbox = Toolbox([duckduckgo_web_search, CalculatorTool()], aliases=(WEB_SEARCH,))
    await run(model, toolbox, CallsSeen(), *before)
    [made] = model.requests[0][1].tool_calls
    assert (schema_names(model), made.name, model.requests[0][2].name) == ([ALIAS, "calculator"], ALIAS, ALIAS)
    assert json.loads(made.function.arguments) == {"query": "seals", "num_results": 3}
    parameters = model.tools[0][0]["function"]["parameters"]
    assert (list(parameters["properties"]), parameters["required"]) == (["query", "num_results"], ["query"])
    assert parameters["properties"]["num_results"]["default"] == 5


@pytest.mark.parametrize("arguments", ["", "[1]", '{"num_results": ', '{"num_results": "many", "query": "x"}'])
async def test_arguments_of_an_alias_that_do_not_fit_are_answered_like_those_of_the_tool(arguments: str) -> None:
    toolbox = Toolbox([duckduckgo_web_search], aliases=(WEB_SEARCH,))
    call = ToolCall("c1", FunctionCall(ALIAS, arguments))
    [result] = await toolbox.call_all([call], RecordingChoice(), CALLER)
    assert isinstance(result, Message)
    assert (result.failed, f"arguments of {SEARCH}" in result.text()) == (True, True)


async def test_a_tool_that_is_itself_called_like_an_alias_is_meant_by_its_name() -> None:
    @tool
    def web_search(query: str) -> str:
        """Search the intranet."""
        return f"intranet: {query}"

    model = ScriptedModel(wants(ALIAS, query="x"), says("done"))
    outcome = await run(model, Toolbox([duckduckgo_web_search, web_search], aliases=(WEB_SEARCH,)), CallsSeen())
    assert outcome.added[1].text() == "intranet: x"
    assert schema_names(model) == [SEARCH, ALIAS]
    outcome = await run(ScriptedModel(wants(ALIAS, query="x"), says("done")), Toolbox([CalculatorTool()]), CallsSeen())
    assert outcome.added[1].text() == f"Error: There is no tool '{ALIAS}'. Tools: calculator."
