"""The toolbox: stages, attachments, long results, and the one name that each tool has under its aliases."""

import asyncio
import json
import re
import sys
from functools import cache
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from task.conversation.messages import Attachment, FunctionCall, Message, Role, ToolCall, user
from task.core_client.files import DialFiles
from task.errors import ArgumentsError, ToolError
from task.llm.scripted import ScriptedModel, says, wants
from task.loop import LoopObserver, RunOutcome, ToolLoop
from task.output.sinks import RESPONSE_CHARS, clipped, label
from task.permissions.decisions import Allowed, CallRequest, Decision, Effect, PermissionMode
from task.tools.base import WEB_SEARCH
from task.tools.calculator.calculator_tool import CalculatorTool
from task.tools.declare import tool
from task.tools.models import DownloadedFile
from task.tools.offload import Offloader, ReadFileLinesTool, SearchInFileTool
from task.tools.toolbox import Toolbox
from tests.support.choices import CALLER, RecordingChoice
from tests.support.gating import gate
from tests.support.tools import MadeTool, answering


def call(name: str, arguments: str = "{}", call_id: str = "c1") -> ToolCall:
    return ToolCall(call_id, FunctionCall(name, arguments))


async def result_of(toolbox: Toolbox, asked: ToolCall, choice: RecordingChoice | None = None) -> Message:
    async with asyncio.timeout(20):
        [result] = await toolbox.call_all([asked], choice or RecordingChoice(), CALLER)
    assert isinstance(result, Message)
    return result


async def test_a_stage_shows_arguments_response_and_duration() -> None:
    choice = RecordingChoice()
    tool = answering("fetch", "the page", shape={"type": "object", "properties": {"file_url": {"type": "string"}}})
    await result_of(Toolbox([tool]), call("fetch", '{"file_url": "files/b/x.txt"}'), choice)
    [stage] = choice.stages
    assert stage.content == ("## Request arguments:\n\n**File URL**: files/b/x.txt\n\n## Response:\n\nthe page\n")
    assert stage.name.startswith("fetch: files/b/x.txt [0.0")
    assert stage.status == "completed"


async def test_attachments_of_results_reach_stage_and_answer_in_call_order() -> None:
    async def draw(title: str) -> Message:
        if title == "first":
            await asyncio.sleep(0)
        picture = Attachment("image/png", title, url=f"files/b/{title}.png")
        return Message(Role.TOOL, "drawn", attachments=(picture,))

    tool = MadeTool("draw", draw, {"type": "object", "properties": {"title": {"type": "string"}}})
    choice = RecordingChoice()
    calls = [call("draw", f'{{"title": "{title}"}}', title) for title in ("first", "second")]
    async with asyncio.timeout(20):
        await Toolbox([tool]).call_all(calls, choice, CALLER)
    assert [item.title for item in choice.attachments] == ["first", "second"]
    assert sorted(item.title or "" for stage in choice.stages for item in stage.attachments) == ["first", "second"]


async def test_a_tool_that_exits_is_cancelled_from_outside_or_will_not_be_cancelled_only_fails() -> None:
    released = asyncio.Event()

    async def leave() -> str:
        sys.exit(3)

    async def broken() -> str:
        raise asyncio.CancelledError

    async def stubborn() -> str:
        while not released.is_set():
            try:
                await released.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    toolbox = Toolbox(
        [MadeTool("leave", leave), MadeTool("broken", broken), MadeTool("stubborn", stubborn, seconds=0.05)]
    )
    assert "leave failed unexpectedly" in (await result_of(toolbox, call("leave"))).text()
    assert (await result_of(toolbox, call("broken"))).failed
    assert "stopped after 0.05 s" in (await result_of(toolbox, call("stubborn"))).text()
    released.set()


async def never_ends(**_: Any) -> str:
    await asyncio.Event().wait()
    return ""


@pytest.mark.fault("tool: a tool whose own limit is above the operator's or what is left of the run")
@pytest.mark.parametrize(
    ("own", "every_call", "left"),
    [(0.05, 60, 60), (900, 0.05, 60), (900, None, 0.5), (None, 0.05, None), (0.05, None, None)],
)
async def test_a_call_ends_at_the_least_of_its_tools_limit_the_operators_and_the_rest_of_the_run(
    own: float | None, every_call: float | None, left: float | None
) -> None:
    toolbox = Toolbox([MadeTool("slow", never_ends, seconds=own)], tool_seconds=every_call)
    async with asyncio.timeout(20):
        [answer] = await toolbox.call_all([call("slow")], RecordingChoice(), CALLER, seconds=left)
    assert isinstance(answer, Message)
    # What is left of the run is less by the time that the call took to start.
    assert re.search(r"slow was stopped after 0\.\d+ s without a result", answer.text())


@pytest.mark.fault("tool: a tool whose own limit is above the operator's or what is left of the run")
async def test_a_call_that_waited_for_its_turn_ends_with_the_run_too() -> None:
    toolbox = Toolbox([MadeTool("slow", never_ends, seconds=0.5)], parallel=1)
    calls = [call("slow", call_id=f"c{number}") for number in range(6)]
    async with asyncio.timeout(20):
        answers = await toolbox.call_all(calls, RecordingChoice(), CALLER, seconds=1.5)
    whole = ["after 0.5 s" in answer.text() for answer in answers if isinstance(answer, Message)]
    assert (whole[0], whole[-1]) == (True, False)


async def test_a_read_only_conversation_refuses_tools_that_write() -> None:
    writer = answering("writer", "written", tool_effects=frozenset({Effect.WRITE}))
    toolbox = Toolbox([writer], gate(mode=PermissionMode.READ_ONLY))
    assert "read-only" in (await result_of(toolbox, call("writer"))).text()


class StoredTexts(DialFiles):
    """Uploads that stay in memory under their own names."""

    def __init__(self, *, full: bool = False) -> None:
        super().__init__("http://core")
        self.texts: dict[str, bytes] = {}
        self._full = full

    async def upload(self, name: str, content: bytes, content_type: str, api_key: str, folder: str = "") -> str:
        if self._full:
            raise ToolError("there is no room")
        url = f"{len(self.texts)}-{name}" if name in self.texts else name
        self.texts[url] = content
        return url

    async def download(self, url: str, api_key: str, max_size: int) -> DownloadedFile:
        return DownloadedFile(url, self.texts[url], None, None)


@cache
def long_text() -> str:
    return "\n".join(f"line {number}" for number in range(1, 500_001))


@pytest.mark.fault("tool: a tool that returns 5 MB")
async def test_a_five_megabyte_result_is_stored_and_the_model_gets_its_ends_and_the_way_to_the_rest() -> None:
    files = StoredTexts()
    tools = [answering("huge", long_text()), ReadFileLinesTool(files), SearchInFileTool(files)]
    toolbox = Toolbox(tools, offloader=Offloader(files))
    answer = (await result_of(toolbox, call("huge"))).text()
    assert len(long_text()) > 5_000_000
    assert len(answer) < 6_000
    assert f"{len(long_text()):,} characters in 500,000 lines" in answer
    assert answer.startswith("line 1\n")
    assert answer.endswith("line 500000")
    lines = await result_of(
        toolbox, call("read_file_lines", '{"file_url": "huge-result.txt", "first_line": 250000, "last_line": 250001}')
    )
    assert lines.text() == "250000: line 250000\n250001: line 250001\n[lines 250000-250001 of 500000]"
    found = await result_of(toolbox, call("search_in_file", '{"file_url": "huge-result.txt", "text": "LINE 49999"}'))
    assert found.text().splitlines()[0] == "49999: line 49999"
    assert found.text().endswith("[11 of 500000 lines contain it; 11 shown]")
    page = (await result_of(toolbox, call("read_file_lines", '{"file_url": "huge-result.txt"}'))).text()
    assert len(page) < 10_100
    beyond = call("read_file_lines", '{"file_url": "huge-result.txt", "first_line": 600000}')
    assert "ask for lines between 1 and 500000" in (await result_of(toolbox, beyond)).text()


@pytest.mark.fault("tool: arguments of 300 kB")
@pytest.mark.parametrize(
    ("arguments", "stored"),
    [
        ({"text": "é\\n" * 30_000, "mode": "w"}, 1),
        ({"rows": list(range(20_000))}, 1),
        ({f"part{number}": f"{number}" * 30_000 for number in range(4)}, 4),
        ({"text": "x" * 30_000}, 0),
    ],
    ids=["text", "a list", "several", "short"],
)
async def test_long_arguments_are_stored_and_stay_json(arguments: dict[str, Any], stored: int) -> None:
    files = StoredTexts()
    asked = call("save", json.dumps(arguments))
    kept = await Offloader(files).shortened_call(asked, CALLER)
    found = json.loads(kept.function.arguments)
    assert (found.keys(), len(files.texts)) == (arguments.keys(), stored)
    assert all(f"All of it is in {url}:" in kept.function.arguments for url in files.texts)
    assert len(kept.function.arguments) < 41_000
    assert (kept == asked) is (stored == 0)


@pytest.mark.parametrize("files", [None, StoredTexts(full=True)])
async def test_a_long_result_that_cannot_be_stored_is_cut_with_a_notice(files: StoredTexts | None) -> None:
    answer = await result_of(Toolbox([answering("huge", long_text())], offloader=Offloader(files)), call("huge"))
    assert f"[cut: the result has {len(long_text()):,} characters" in answer.text()
    blank = call("save", "{" + " " * 50_000 + "}")
    assert (await Offloader(files).shortened_call(blank, CALLER)).function.arguments == "{}"


@pytest.mark.fault("tool: text, links or arguments that would make a stage too large for the chat")
async def test_many_long_arguments_leave_room_for_the_response() -> None:
    choice = RecordingChoice()
    given = {f"part_{number}": f"line\n{'x' * 5_000}" for number in range(20)}
    await result_of(Toolbox([answering("join", "joined")]), call("join", json.dumps(given)), choice)
    content = choice.stages[0].content
    assert len(content.encode()) < 15_000
    assert content.endswith("## Response:\n\njoined\n")


def test_an_argument_has_a_label_and_clipping_never_splits_a_character() -> None:
    assert [label(name) for name in ("file_url", "request", "user_id")] == ["File URL", "Request", "User ID"]
    text: Any = clipped("ä" * RESPONSE_CHARS, RESPONSE_CHARS - 1)
    assert ("\ufffd" in text, "more bytes" in text) == (False, True)


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


SHAPES: dict[str, dict[str, Any]] = {
    "plain": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]},
    "closed": {"type": "object", "properties": {"b": {"type": "boolean"}}, "additionalProperties": False},
    "others are numbers": {
        "type": "object", "properties": {"a": {"type": "number"}}, "additionalProperties": {"type": "number"}
    },
    "bounded": {"type": "object", "properties": {"a": {"type": "string", "maxLength": 2}, "b": {"type": "number"}}},
    "as a whole": {"type": "object", "properties": {"a": {"type": "string"}}, "maxProperties": 1},
    "nullable": {"type": "object", "properties": {"a": {"type": ["string", "null"]}, "b": {"enum": [1, "x"]}}},
    "anything": {},
    "nothing": {"type": "object", "properties": {"a": False}},
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_arguments_are_accepted_exactly_where_the_json_schema_accepts_them(shape: dict[str, Any]) -> None:
    validator, tool = Draft202012Validator(shape), answering("any", "", shape=shape)
    values = ["x", "long", 1, 2**80, 1.0, 1.5, True, None, [], {"a": 1}]
    some = [{}, *({name: value} for name in "abc" for value in values)]
    for arguments in [*some, *({"a": first, "b": second} for first in values for second in values)]:
        fits = True
        try:
            assert tool.parse(call("any", json.dumps(arguments))) == arguments
        except ArgumentsError:
            fits = False
        assert fits == validator.is_valid(arguments), arguments
