"""The HTTP API offers the search under its documented name."""

from __future__ import annotations

from task.api.platform.web_search import with_web_search
from task.conversation.messages import FunctionCall, Message, ToolCall
from task.errors import ArgumentsError
from task.tools.calculator.calculator_tool import CalculatorTool
from task.tools.declare import tool
from task.tools.models import Caller, Effect
from task.tools.toolbox import Toolbox
from tests.support.choices import RecordingChoice


@tool(effects={Effect.READ, Effect.NETWORK})
def duckduckgo_web_search(query: str, max_results: int = 5) -> str:
    """Search the web."""
    return f"{max_results} results for {query}"


async def nobody() -> str:
    return "nobody"


async def searched(arguments: str) -> Message:
    toolbox = Toolbox(with_web_search([duckduckgo_web_search]))
    call = ToolCall("call_1", FunctionCall("web_search", arguments))
    [result] = await toolbox.call_all([call], RecordingChoice(), Caller("key", nobody))
    assert isinstance(result, Message)
    return result


async def test_web_search_calls_the_servers_tool() -> None:
    answer = await searched('{"query": "otters"}')
    assert (answer.text(), answer.name, answer.tool_call_id) == ("5 results for otters", "web_search", "call_1")
    assert (await searched('{"query": "otters", "num_results": 2}')).text() == "2 results for otters"


async def test_more_results_than_there_can_be_are_refused() -> None:
    answer = await searched('{"query": "otters", "num_results": 1000}')
    assert answer.failed
    assert ArgumentsError.__name__ not in answer.text()


def test_all_other_tools_keep_their_names_and_the_search_its_effects() -> None:
    renamed, calculator = with_web_search([duckduckgo_web_search, CalculatorTool()])
    assert (renamed.name, calculator.name) == ("web_search", "calculator")
    assert renamed.effects == duckduckgo_web_search.effects
    assert renamed.origin == duckduckgo_web_search.origin
