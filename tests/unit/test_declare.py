"""Tools made of Python functions: `@tool`, and loading them from paths and entry points."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from dataclasses import dataclass
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from task.conversation.messages import Attachment, Message, Role
from task.errors import SettingsError, ToolError
from task.tools.declare import load_tools, tool
from task.tools.models import Effect, ToolCallParams
from task.tools.toolbox import Toolbox
from tests.support.tool_calls import call_of, called, params_of


class Unit(Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


@dataclass
class Place:
    name: str
    height: float = 0.0


class Reading(BaseModel):
    place: Place
    unit: Unit = Unit.CELSIUS
    values: list[float] = []


class Tree(BaseModel):
    label: str
    children: list[Tree] = []


@tool
def count_words(text: str, minimum: int = 1) -> int:
    """Count the words of a text.

    Words are separated by blanks.

    Args:
        text: The text to count.
        minimum: Letters a word needs.
    """
    return sum(len(word) >= minimum for word in text.split())


async def test_a_function_becomes_a_tool_with_its_docstring_and_types() -> None:
    assert count_words.schema == {
        "type": "function",
        "function": {
            "name": "count_words",
            "description": "Count the words of a text.\n\nWords are separated by blanks.",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "The text to count."},
                    "minimum": {"type": "integer", "default": 1, "description": "Letters a word needs."},
                },
                "required": ["text"],
                "additionalProperties": False,
            },
        },
    }
    assert (await called(count_words, text="to be or not to be", minimum=3)).content == "1"
    assert count_words("two words") == 2, "it can still be called"


async def test_optional_literal_enum_list_dict_dataclass_and_model_arguments_arrive_as_their_types() -> None:
    seen: dict[str, Any] = {}

    @tool
    def note(
        reading: Reading,
        day: date,
        style: Literal["short", "long"] = "short",
        unit: Unit = Unit.CELSIUS,
        tags: list[str] | None = None,
        scores: dict[str, float] | None = None,
        limit: Annotated[int, Field(description="At most so many.", ge=1)] = 3,
    ) -> None:
        """Note a reading."""
        seen.update(locals())

    properties = note.parameters["properties"]
    assert properties["reading"]["properties"]["place"] == {
        "type": "object",
        "properties": {"name": {"type": "string"}, "height": {"type": "number", "default": 0.0}},
        "required": ["name"],
    }
    assert properties["unit"] == {"enum": ["c", "f"], "type": "string", "default": "c"}
    assert properties["style"]["enum"] == ["short", "long"]
    assert properties["limit"] == {"type": "integer", "minimum": 1, "default": 3, "description": "At most so many."}
    assert "$ref" not in json.dumps(note.parameters)

    reading = {"place": {"name": "hill", "height": 3}, "values": [1, 2]}
    await called(note, reading=reading, day="2025-10-05", unit="f", tags=["a"], scores={"x": 1})
    assert seen["reading"] == Reading(place=Place("hill", 3.0), values=[1.0, 2.0])
    assert (seen["day"], seen["unit"], seen["tags"]) == (date(2025, 10, 5), Unit.FAHRENHEIT, ["a"])
    assert (seen["style"], seen["limit"], seen["scores"]) == ("short", 3, {"x": 1.0})


async def test_a_type_that_contains_itself_may_be_anything_in_itself() -> None:
    @tool
    def depth(tree: Tree) -> int:
        """Measure a tree."""
        return 1 + max((depth(child) for child in tree.children), default=0)

    assert depth.parameters["properties"]["tree"]["properties"]["children"]["items"] == {}
    tree = {"label": "root", "children": [{"label": "leaf"}]}
    assert (await called(depth, tree=tree)).content == "2"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"text": 5}, "text: 5 is not of type 'string'"),
        ({}, "'text' is a required property"),
        ({"text": "a", "minimun": 2}, "'minimun' was unexpected"),
        ({"text": "a", "day": "2025-02-31"}, "day: Input should be a valid date"),
        ("[1]", "must be a JSON object"),
        ('{"text":', "not valid JSON"),
    ],
)
async def test_arguments_that_do_not_fit_are_named(arguments: dict[str, Any] | str, fault: str) -> None:
    @tool
    def note(text: str, day: date | None = None) -> None:
        """Note a text."""

    answer = await note.execute(params_of(call_of("note", arguments)))
    assert answer.failed
    assert fault in answer.text()


async def test_synchronous_functions_that_hang_do_not_block_others() -> None:
    may_end = threading.Event()

    @tool
    def hang() -> bool:
        """Wait for what does not come."""
        return may_end.wait(30)

    calls = [asyncio.create_task(called(hang)) for _ in range(40)]  # more than the event loop has threads
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(20):
            assert await asyncio.to_thread(lambda: "free") == "free"
        calls.pop().cancel()
    finally:
        may_end.set()
    assert {answer.text() for answer in await asyncio.gather(*calls)} == {"true"}


async def test_an_asynchronous_function_gets_the_call_and_arguments_of_any_name() -> None:
    @tool
    async def remember(schema: str, model_config: int, call: ToolCallParams, _private: int = 0) -> Any:
        """Remember odd names."""
        await asyncio.sleep(0)
        return [schema, model_config, _private, call.conversation_id]

    assert list(remember.parameters["properties"]) == ["schema", "model_config", "_private"]
    assert (await called(remember, schema="s", model_config=1)).content == '["s",1,0,"conversation"]'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text as it is", "text as it is"),
        ({"größe": [1, None, True]}, '{"größe":[1,null,true]}'),
        (Place("hill", 2.5), '{"name":"hill","height":2.5}'),
        (Reading(place=Place("hill")), '{"place":{"name":"hill","height":0.0},"unit":"c","values":[]}'),
        (date(2025, 10, 5), '"2025-10-05"'),
        (None, "null"),
        (b"\xff", '"_w=="'),
    ],
)
async def test_a_result_is_text_as_it_is_and_json_otherwise(value: Any, text: str) -> None:
    @tool
    def give() -> Any:
        """Give something."""
        return value

    assert (await called(give)).content == text


async def test_a_message_stays_a_message_and_only_a_tool_error_reaches_the_model() -> None:
    @tool(name="draw_it", effects={Effect.WRITE}, timeout=2.5)
    def draw(how: str) -> Message:
        """Draw something."""
        if how == "rudely":
            raise OSError("secret path")
        if how == "politely":
            raise ToolError("there is no such book")
        return Message(Role.TOOL, "drawn", attachments=(Attachment("image/png", "p", url="files/b/p.png"),))

    assert (draw.name, draw.effects, draw.spec.timeout) == ("draw_it", {Effect.WRITE}, 2.5)
    assert (count_words.effects, count_words.spec.timeout) == ({Effect.READ}, None)
    answer = await called(draw, how="well")
    assert (answer.text(), answer.attachments[0].url) == ("drawn", "files/b/p.png")
    assert (await called(draw, how="politely")).content == "Error: there is no such book"
    assert "secret" not in (await called(draw, how="rudely")).text()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("def undocumented(text: str) -> str: ...", "undocumented needs a docstring"),
        ("def variadic(*texts: str) -> None: 'Take many.'", "has no fixed name"),
        ("def unresolved(text: 'Nowhere') -> None: 'Take something.'", "'Nowhere' is not defined"),
        ("def unschematic(lock: threading.Barrier) -> None: 'Take a barrier.'", "no JSON Schema"),
    ],
)
def test_a_function_that_makes_no_tool_is_refused_where_it_is_declared(function: str, reason: str) -> None:
    defined: dict[str, Any] = {"threading": threading, "__name__": __name__}
    exec(function, defined)
    with pytest.raises(TypeError, match=reason):
        tool(list(defined.values())[-1])


FIVE_LINES = '''from task.tools.declare import tool
@tool
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()
'''


async def test_a_user_adds_a_tool_in_five_lines(tmp_path: Path) -> None:
    file = tmp_path / "shouting.py"
    file.write_text(FIVE_LINES)
    [shout] = load_tools([str(file)])
    assert [schema["function"]["name"] for schema in Toolbox([shout]).schemas()] == ["shout"]
    assert (await called(shout, text="hello")).content == "HELLO"


def test_tools_are_loaded_from_modules_attributes_and_installed_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "shouting_module.py").write_text(FIVE_LINES + "both = [shout, tool(name='again')(shout)]\n")
    assert [item.name for item in load_tools(["shouting_module:shout"])] == ["shout"]
    assert [item.name for item in load_tools(["shouting_module:both"])] == ["shout", "again"]
    assert [item.name for item in load_tools(["shouting_module"])] == ["shout"]
    info = tmp_path / "shouting-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[dial_agent.tools]\nshout = shouting_module:shout\n")
    assert [item.name for item in load_tools([])] == ["shout"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("1 / 0", "cannot be loaded: ZeroDivisionError"),
        ("def broken(:", "cannot be loaded: SyntaxError"),
        ("import no_such_module_anywhere", "cannot be loaded: ModuleNotFoundError"),
        ("value = 1", "contains no tool"),
        (FIVE_LINES + "again = tool(name='shout')(shout)", "already a tool 'shout'"),
        (FIVE_LINES.replace('"""Say it louder."""', "pass"), "needs a docstring"),
    ],
)
def test_a_broken_tool_file_stops_the_start_with_one_line_that_names_it(
    tmp_path: Path, content: str, reason: str
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(content)
    with pytest.raises(SettingsError, match=reason) as caught:
        load_tools([str(file)])
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "dial_agent_tools_broken" not in sys.modules or "cannot be loaded" not in reason


@pytest.mark.parametrize("path", ["no_such.module:tool", "json:no_such", "json:dumps", "absent.py"])
def test_a_path_that_leads_nowhere_is_named(path: str) -> None:
    with pytest.raises(SettingsError, match=path):
        load_tools([path])
