"""A program's own tools: registered, described in four formats, and run as a model's answer asks."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from task.errors import SettingsError, ToolError
from task.tools.toolset import ToolSet
from tests.support.documented import tool_calling_examples

EXAMPLES = tool_calling_examples()


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


@dataclass
class Place:
    city: str
    country: str | None = None


class Range(BaseModel):
    days: int = Field(default=1, ge=1, description="How many.")


async def forecast(
    place: Place,
    unit: Unit,
    style: Literal["short", "long"] = "short",
    span: Range | None = None,
    limit: int | None = None,
) -> str:
    """Forecast the weather.

    Args:
        place: Where.
        unit: Of temperatures.
        limit: At most so many words.
    """
    return f"{place.city}: 20 {unit.value}, {style}, {span}, {limit}"


def get_weather(location: str) -> dict[str, Any]:
    """Get current weather

    Args:
        location: The city.
    """
    if location == "Atlantis":
        raise ToolError("There is no such place.")
    return {"temp": 75, "condition": "sunny", "place": location}


def asking(*calls: tuple[str, Any]) -> dict[str, Any]:
    texts = [(name, text if isinstance(text, str) else json.dumps(text)) for name, text in calls]
    functions = [{"name": name, "arguments": text} for name, text in texts]
    made = [{"id": f"call_{n}", "type": "function", "function": each} for n, each in enumerate(functions)]
    return {"role": "assistant", "content": None, "tool_calls": made}


def test_the_call_of_the_design_is_run_and_its_result_has_the_design_s_form() -> None:
    [result] = ToolSet(get_weather).execute(EXAMPLES["Tool Call Response Message"])
    expected = EXAMPLES["Tool Result Message"]
    assert {name: result[name] for name in ("role", "tool_call_id", "name")} == {
        name: expected[name] for name in ("role", "tool_call_id", "name")
    }
    assert set(result) == set(expected)
    assert json.loads(result["content"]) == {"temp": 75, "condition": "sunny", "place": "New York"}


@pytest.mark.fault("tool calling: calls of a program's tools that are unknown, malformed or refused")
async def test_every_call_is_answered_in_order_whatever_becomes_of_it() -> None:
    answer = asking(
        ("get_weather", {"location": "Atlantis"}),
        ("get_weather", "location,unit"),
        ("get_weather", {"town": "Rome"}),
        ("nothing", {}),
        ("get_weather", {"location": "Rome"}),
    )
    results = await ToolSet(get_weather).execute_async(answer)
    assert [result["tool_call_id"] for result in results] == [f"call_{n}" for n in range(5)]
    refused, broken, other, unknown, done = [result["content"] for result in results]
    assert refused == "Error: There is no such place."
    assert "not valid JSON" in broken
    assert "'location' is a required property" in other
    assert "There is no tool 'nothing'. Tools: get_weather." in unknown
    assert json.loads(done)["place"] == "Rome"


@pytest.mark.fault("tool calling: a blocking call inside an event loop")
async def test_inside_an_event_loop_the_blocking_call_names_its_twin() -> None:
    assert await ToolSet(get_weather).execute_async(EXAMPLES["Final Response Message"]) == []
    with pytest.raises(RuntimeError, match=r"await execute_async\(\.\.\.\)"):
        ToolSet(get_weather).execute(asking(("get_weather", {"location": "Rome"})))


@pytest.mark.fault("tool calling: two tools of one name, a function that cannot be a tool")
def test_two_tools_of_one_name_and_functions_that_cannot_be_tools_are_refused() -> None:
    tools = ToolSet(get_weather)
    with pytest.raises(SettingsError, match="two tools are called 'get_weather'"):
        tools.register(get_weather)
    with pytest.raises(TypeError, match="docstring"):
        tools.register(lambda text: text)
    assert len(tools.schemas()) == 1


def test_one_function_has_one_schema_in_every_format_and_ollamas_says_in_words_what_it_has_no_keyword_for() -> None:
    tools = ToolSet(forecast)
    [openai], [dapr], [mcp], [ollama] = (tools.schemas(), *(tools.schemas(kind) for kind in ("dapr", "mcp", "ollama")))
    wide, narrow = openai["function"]["parameters"], ollama["function"]["parameters"]
    assert wide["properties"]["unit"] == {
        "enum": ["celsius", "fahrenheit"], "type": "string", "description": "Of temperatures.",
    }  # fmt: skip
    assert wide["properties"]["limit"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert dapr == {"function": openai["function"]}
    assert mcp == {"name": "forecast", "description": "Forecast the weather.", "inputSchema": wide}
    from mcp.types import Tool

    assert Tool.model_validate(mcp).input_schema == wide
    assert (narrow["type"], narrow["required"]) == (wide["type"], wide["required"])
    assert list(narrow["properties"]) == list(wide["properties"])
    assert narrow["properties"]["unit"] == wide["properties"]["unit"]
    assert narrow["properties"]["style"] == {
        "type": "string", "enum": ["short", "long"], "description": 'Default: "short".',
    }  # fmt: skip
    assert narrow["properties"]["limit"] == {
        "description": "At most so many words. Default: null.", "anyOf": [{"type": "integer"}, {"type": "null"}],
    }  # fmt: skip
