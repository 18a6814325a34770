"""Ollama's own API: what is sent, what is understood, and what every fault becomes; against a peer process."""

import base64
import json
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing
from functools import reduce
from typing import Any

import pytest

from task.conversation.messages import FunctionCall, Message, Role, ToolCall, system, tool_message, user
from task.errors import ProviderError
from task.llm.base import Accumulator, ChatModel, ModelOptions, TextDelta, ToolSchema, Waiting
from task.llm.failures import explained
from task.llm.ollama import OllamaServer, context_for
from task.llm.scripted import says, wants
from task.llm.transport import Retries, new_session
from tests.support.mcp_processes import ServerProcess
from tests.support.ollama import MODEL, OllamaPeer, answer, ollama_process, raw, refusal, scripted_peer
from tests.support.schemas import ALL_OF_BOMB
from tests.support.upstream import openai_upstream

QUESTION = [system("You are brief."), user("What is 25 * 47?")]
CALCULATOR: ToolSchema = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Calculates.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
PLAIN = ModelOptions()
PICTURE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64.b64encode(b'png').decode()}"}}
SMALL = {"context": 32_768, "capabilities": ["completion"]}


@pytest.fixture(scope="module")
def process() -> Generator[ServerProcess]:
    with ollama_process() as running:
        yield running


@pytest.fixture
async def peer(process: ServerProcess) -> AsyncGenerator[OllamaPeer]:
    async with scripted_peer(process) as peer:
        yield peer


@pytest.fixture
async def server(peer: OllamaPeer) -> AsyncGenerator[OllamaServer]:
    async with new_session() as session:
        yield OllamaServer(session, peer.url, context=16_384, retries=Retries(1))


async def answered(
    server: OllamaServer,
    messages: Sequence[Message] = QUESTION,
    tools: Sequence[ToolSchema] = (CALCULATOR,),
    options: ModelOptions = PLAIN,
    model: str = MODEL,
) -> Accumulator:
    received = Accumulator()
    chat = server.chat_model(model)
    async with aclosing(chat.stream(messages, tools, options)) as deltas:
        async for delta in deltas:
            received.add(delta)
    return received


async def followed(model: ChatModel, received: Accumulator, then: Callable[[], None] = lambda: None) -> None:
    async for delta in model.stream(QUESTION, (), PLAIN):
        received.add(delta)
        if isinstance(delta, TextDelta):
            then()


async def refused(server: OllamaServer, messages: Sequence[Message] = QUESTION, **more: object) -> str:
    """The sentence that a person reads instead of an answer."""
    with pytest.raises(ProviderError) as caught:
        await answered(server, messages, **more)  # type: ignore[arg-type]
    return caught.value.display_message or explained(caught.value, MODEL)


# What is sent


async def test_every_request_names_a_context_and_none_is_cut(peer: OllamaPeer, server: OllamaServer) -> None:
    await peer.script(models={"short:latest": {"context": 8192}, "long:latest": {"context": 131_072}})
    for model in ("short", "long", "short", "long"):
        await answered(server, model=model)
    seen = await peer.seen()
    assert [body["options"]["num_ctx"] for body in seen.bodies] == [8192, 16_384, 8192, 16_384]
    assert {(body["truncate"], body["shift"]) for body in seen.bodies} == {(False, False)}
    assert seen.loads == [["short:latest", 8192], ["long:latest", 16_384]], "no model is loaded a second time"


def test_a_machine_with_more_memory_lets_a_model_read_more() -> None:
    assert [context_for(size * 2**30) for size in (0, 4, 16, 32, 512)] == [8192, 8192, 16_384, 32_768, 65_536]


async def test_options_have_ollamas_names(peer: OllamaPeer, server: OllamaServer) -> None:
    options = ModelOptions(0.2, 0.9, 50, ["END"], 7, extra={"top_k": 5, "presence_penalty": 0.5, "user": "x"})
    await answered(server, options=options)
    (body,) = (await peer.seen()).bodies
    assert body["options"] == {
        "num_ctx": 16_384, "temperature": 0.2, "top_p": 0.9, "num_predict": 50, "stop": ["END"], "seed": 7,
        "top_k": 5, "presence_penalty": 0.5,
    }  # fmt: skip


@pytest.mark.parametrize(("given", "sent"), [("30m", "30m"), ("-1", -1), ("90", 90)])
async def test_a_model_stays_loaded_as_long_as_the_settings_say(peer: OllamaPeer, given: str, sent: str | int) -> None:
    async with new_session() as session:
        await answered(OllamaServer(session, peer.url, keep_alive=given))
    assert (await peer.seen()).bodies[0]["keep_alive"] == sent


async def test_a_history_with_calls_is_sent_as_ollama_wants_it(peer: OllamaPeer, server: OllamaServer) -> None:
    call = ToolCall("call_1", FunctionCall("calculator", '{"expression": "25*47"}'))
    thought = Message(Role.ASSISTANT, None, tool_calls=(call,), reasoning_content="I need a tool.")
    history = [Message(Role.DEVELOPER, "Be brief."), user("25*47?"), thought, tool_message(call, "1175")]
    await answered(server, history)
    assert (await peer.seen()).bodies[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "25*47?"},
        {
            "role": "assistant", "content": "", "thinking": "I need a tool.",
            "tool_calls": [
                {"id": "call_1", "function": {"name": "calculator", "arguments": {"expression": "25*47"}}}
            ],
        },
        {"role": "tool", "content": "1175", "tool_call_id": "call_1", "tool_name": "calculator"},
    ]  # fmt: skip


@pytest.mark.fault("ollama: a schema with references, defaults, alternatives or itself inside")
async def test_schemas_keep_their_meaning_in_the_keywords_ollama_reads(peer: OllamaPeer, server: OllamaServer) -> None:
    parameters = {
        "type": "object",
        "properties": {
            "place": {"$ref": "#/$defs/Place"},
            "days": {"type": "integer", "description": "How many.", "default": 3, "minimum": 1},
            "unit": {"oneOf": [{"const": "C"}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/Tag"}},
            "both": {"allOf": [{"type": "object", "properties": {"a": {"type": "string"}}}], "required": ["a"]},
            "anything": True,
            "tree": {"$ref": "#/$defs/Tree"},
        },
        "required": ["place"],
        "$defs": {
            "Place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            "Tag": {"enum": ["x", "y"]},
            "Tree": {"type": "object", "properties": {"child": {"$ref": "#/$defs/Tree"}}},
        },
    }
    tool = {"type": "function", "function": {"name": "weather", "description": "Weather.", "parameters": parameters}}
    await answered(server, tools=[tool])
    sent = (await peer.seen()).bodies[0]["tools"][0]["function"]["parameters"]
    tree = sent["properties"].pop("tree")
    assert sent == {
        "type": "object",
        "properties": {
            "place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            "days": {"type": "integer", "description": "How many. Default: 3."},
            "unit": {"anyOf": [{"enum": ["C"]}, {"type": "null"}]},
            "tags": {"type": "array", "items": {"enum": ["x", "y"]}},
            "both": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
            "anything": {},
        },
        "required": ["place"],
    }
    assert tree == {"type": "object", "properties": {"child": {}}}


@pytest.mark.fault("ollama: a schema with references, defaults, alternatives or itself inside")
@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}], "properties": {"a": {"$ref": "#"}}},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
        {"properties": {"a": {"$ref": "#/no/where"}, "b": {"$ref": 5}, "c": {"allOf": [True]}}},
        {"properties": {"a": {"required": True, "type": 1, "enum": "x", "allOf": True, "anyOf": {"a": 1}},
                        "b": True},
         "required": True, "allOf": [{"properties": 1, "required": ["a"]}]},
        {"properties": {f"p{n}": {"$ref": f"#/$defs/D{n}"} for n in range(30)},
         "$defs": {f"D{n}": {"properties": {f"q{m}": {"$ref": f"#/$defs/D{m}"} for m in range(30)}}
                   for n in range(30)}},
        reduce(lambda inner, _: {"properties": {"a": inner}}, range(3000), {}),
        ALL_OF_BOMB,
    ],
    ids=["itself", "itself in allOf", "circle", "nowhere", "wrong kinds", "everything", "deep", "allOf bomb"],
)  # fmt: skip
async def test_no_schema_makes_a_request_endless(
    peer: OllamaPeer, server: OllamaServer, schema: dict[str, Any]
) -> None:
    tool = {"type": "function", "function": {"name": "odd", "description": "", "parameters": schema}}
    assert (await answered(server, tools=[tool])).text == "Hello from the peer."
    (body,) = (await peer.seen()).bodies
    assert len(json.dumps(body["tools"])) < 200_000


@pytest.mark.fault("ollama: a picture for a model that cannot see, or by its address")
async def test_pictures_go_to_models_that_see_and_are_refused_for_others(
    peer: OllamaPeer, server: OllamaServer
) -> None:
    await peer.script(models={"eye:latest": {"capabilities": ["completion", "vision"]}})
    question = [Message(Role.USER, [{"type": "text", "text": "What is it?"}, PICTURE])]
    assert await refused(server, question) == (
        "The model test-model cannot see pictures. Choose a model that can, or leave them out."
    )
    assert (await server.accepts_images(MODEL), await server.accepts_images("eye")) == (False, True)
    linked = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}
    assert "Attach the picture itself" in await refused(server, [Message(Role.USER, [linked])], model="eye")
    await answered(server, question, model="eye")
    [body] = (await peer.seen()).bodies
    assert body["messages"] == [
        {"role": "user", "content": "What is it?", "images": [base64.b64encode(b"png").decode()]}
    ]


@pytest.mark.parametrize(
    ("effort", "think"), [("none", False), ("minimal", "low"), ("high", "high"), ("xhigh", "max"), (None, None)]
)
async def test_a_thinking_models_effort_can_be_chosen(
    peer: OllamaPeer, server: OllamaServer, effort: str | None, think: bool | str | None
) -> None:
    await peer.script(
        says("yes", reasoning="Let me see."), models={"deep:latest": {"capabilities": ["completion", "thinking"]}}
    )
    received = await answered(server, tools=(), options=ModelOptions(reasoning_effort=effort), model="deep")
    assert (await peer.seen()).bodies[0].get("think") == think
    assert (received.message().reasoning_content, received.text) == ("Let me see.", "yes")


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
SHAPED = ModelOptions(
    extra={"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}
)


async def test_structured_output_is_enforced_where_that_is_possible(peer: OllamaPeer, server: OllamaServer) -> None:
    await peer.script(models={"far:latest": {"remote_host": "https://ollama.com:443"}})
    plain = await answered(server, tools=(), options=SHAPED)
    beside = await answered(server, options=SHAPED)
    cloud = await answered(server, tools=(), options=SHAPED, model="far")
    some = await answered(server, tools=(), options=ModelOptions(extra={"response_format": {"type": "json_object"}}))
    first, second, third, fourth = (await peer.seen()).bodies
    assert (first["format"], fourth["format"]) == (SCHEMA, "json")
    for body in (second, third):
        assert "format" not in body
        assert json.dumps(SCHEMA, separators=(",", ":")) in body["messages"][0]["content"]
    assert (plain.warnings, some.warnings) == ([], [])
    assert ["prompt only" in text for text in (*beside.warnings, *cloud.warnings)] == [True, True]


@pytest.mark.fault("ollama: a model without tools")
async def test_a_model_without_tools_answers_and_the_trace_says_so(peer: OllamaPeer, server: OllamaServer) -> None:
    await peer.script(says("1175"), models={"plain:latest": SMALL})
    received = await answered(server, model="plain", options=ModelOptions(reasoning_effort="high"))
    assert (received.text, (await peer.seen()).bodies[0].get("tools")) == ("1175", None)
    assert received.warnings == [
        "the tools had no effect: plain cannot call tools",
        "reasoning_effort had no effect: plain does not think before it answers",
    ]


async def test_a_choice_of_one_tool_leaves_only_that_one(peer: OllamaPeer, server: OllamaServer) -> None:
    other = {"type": "function", "function": {"name": "other", "description": "", "parameters": {}}}
    choice = {"type": "function", "function": {"name": "calculator"}}
    await answered(server, tools=(CALCULATOR, other), options=ModelOptions(tool_choice=choice))
    await answered(server, tools=(CALCULATOR, other), options=ModelOptions(tool_choice="none"))
    first, second = (await peer.seen()).bodies
    assert [tool["function"]["name"] for tool in first["tools"]] == ["calculator"]
    assert "tools" not in second


# What is understood


async def test_text_calls_and_usage_are_read(peer: OllamaPeer, server: OllamaServer) -> None:
    await peer.script(says("I calculate. ", reasoning="Hm. ") & wants("calculator", expression="25*47"))
    received = await answered(server)
    message = received.message()
    (call,) = message.tool_calls
    assert (message.content, message.reasoning_content) == ("I calculate. ", "Hm. ")
    assert (call.name, json.loads(call.function.arguments)) == ("calculator", {"expression": "25*47"})
    assert call.id.startswith("call_")
    assert received.usage is not None
    assert (received.usage.completion_tokens, received.finish_reason) == (4, "tool_calls")
    assert received.usage.prompt_tokens == -(-len((await peer.seen()).prompts[0]) // 4)


async def test_a_call_in_the_text_is_made_and_inventions_are_dropped(peer: OllamaPeer, server: OllamaServer) -> None:
    text = '```json\n{"name": "calculator", "arguments": {"expression": "25*47"}}\n```\nThe result is 100.'
    await peer.script(says("I calculate.\n", text))
    received = await answered(server)
    (call,) = received.message().tool_calls
    assert (call.name, json.loads(call.function.arguments)) == ("calculator", {"expression": "25*47"})
    assert (received.text, received.finish_reason) == ("I calculate.\n", "tool_calls")


@pytest.mark.fault("ollama: two calls with the same index, or without ids")
async def test_calls_with_one_index_and_without_ids_are_all_kept(peer: OllamaPeer, server: OllamaServer) -> None:
    calls = (
        wants("calculator", expression="1") & wants("calculator", expression="2") & wants("calculator", expression="2")
    )
    await peer.script(
        {**answer(*({"call": {"name": c.name, "arguments": c.arguments}} for c in calls.calls)), "ids": False}
    )
    found = (await answered(server)).message().tool_calls
    assert [json.loads(call.function.arguments)["expression"] for call in found] == ["1", "2", "2"]
    assert len({call.id for call in found}) == 3


@pytest.mark.fault("ollama: arguments that are a string of JSON")
@pytest.mark.parametrize("arguments", ['{"expression": "1"}', {"expression": "1"}])
async def test_arguments_may_be_an_object_or_a_string_of_json(
    peer: OllamaPeer, server: OllamaServer, arguments: object
) -> None:
    await peer.script(answer({"call": {"name": "calculator", "arguments": arguments}}))
    (call,) = (await answered(server)).message().tool_calls
    assert (call.function.arguments.replace(" ", ""), call.problem) == ('{"expression":"1"}', None)


@pytest.mark.fault("ollama: lines cut anywhere, also within a character")
@pytest.mark.fault("ollama: a proxy that buffers")
@pytest.mark.parametrize("look", [{"bytes_per_write": 1}, {"bytes_per_write": 7}, {"buffered": True}])
async def test_lines_may_be_cut_anywhere(peer: OllamaPeer, server: OllamaServer, look: dict[str, object]) -> None:
    await peer.script(
        answer({"text": "Größe 東京 🙂"}, {"call": {"name": "calculator", "arguments": {"expression": "é"}}}, **look)
    )
    message = (await answered(server)).message()
    assert message.content == "Größe 東京 🙂"
    assert json.loads(message.tool_calls[0].function.arguments) == {"expression": "é"}


@pytest.mark.fault("ollama: a server that cuts a request although it is asked not to")
async def test_a_server_that_cuts_all_the_same_leaves_a_warning(peer: OllamaPeer, server: OllamaServer) -> None:
    line = {
        "message": {"role": "assistant", "content": "x"},
        "done": True,
        "prompt_eval_count": 16_384,
        "eval_count": 1,
    }
    await peer.script(answer(raw(json.dumps(line).encode() + b"\n"), {"end": "close"}))
    assert (await answered(server)).warnings == [
        "the request filled the context of 16384 tokens, so its beginning may have been cut off"
    ]


# Faults


async def test_an_answer_that_is_left_stops_the_server(peer: OllamaPeer, server: OllamaServer) -> None:
    await peer.script(answer({"text": "one "}, {"text": "two "}, {"hang": True}))
    async with aclosing(server.chat_model(MODEL).stream(QUESTION, (), PLAIN)) as deltas:
        async for delta in deltas:
            if isinstance(delta, Waiting):
                continue
            assert delta == TextDelta("one ")
            break
    assert (await peer.seen(stopped=1)).stopped == [2]


@pytest.mark.fault("ollama: an error line after text")
async def test_an_error_line_after_text_is_a_failure(peer: OllamaPeer, server: OllamaServer) -> None:
    await peer.script(answer({"text": "half "}, {"error": "llama runner process has terminated: exit status 2"}))
    received = Accumulator()
    with pytest.raises(ProviderError) as caught:
        await followed(server.chat_model(MODEL), received)
    assert (received.text, caught.value.status_code) == ("half ", 500)
    assert "did not answer properly" in explained(caught.value, MODEL)


@pytest.mark.fault("ollama: an answer that ends within a line, without its last line, or is not Ollama's")
@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([{"text": "half "}, {"end": "close"}], "The connection to the model test-model was lost. Try again."),
        ([{"text": "half "}, raw(b'{"message": {"cont'), {"end": "close"}], "The connection to the model"),
        ([{"text": "half "}, {"end": "reset"}], "The connection to the model test-model was lost. Try again."),
        ([raw(b"<html>hello</html>\n"), {"end": "close"}], "did not answer properly"),
        ([raw(b'[1, 2]\n{"done": true}\n'), {"end": "close"}], "did not answer properly"),
        ([raw(b'{"message": 1}\n'), {"end": "close"}], "did not answer properly"),
        ([raw(b'{"done": true, "eval_count": "many"}\n'), {"end": "close"}], "did not answer properly"),
    ],
    ids=["no end", "torn line", "reset", "html", "list", "wrong shape", "wrong count"],
)  # fmt: skip
async def test_an_answer_that_ends_early_or_is_something_else_is_a_failure(
    peer: OllamaPeer, server: OllamaServer, parts: list[dict[str, object]], sentence: str
) -> None:
    await peer.script(answer(*parts))
    assert sentence in await refused(server)


@pytest.mark.fault("ollama: a conversation that is too long for the context")
async def test_a_prompt_that_is_too_long_is_an_error_the_window_knows(peer: OllamaPeer, server: OllamaServer) -> None:
    with pytest.raises(ProviderError) as caught:
        await answered(server, [user("word " * 20_000)])
    assert (caught.value.status_code, caught.value.code) == (400, "context_length_exceeded")
    assert await server.request_tokens(MODEL) == 16_384 - 4096


@pytest.mark.fault("ollama: memory too small for the context")
async def test_too_little_memory_is_named(
    peer: OllamaPeer, server: OllamaServer, caplog: pytest.LogCaptureFixture
) -> None:
    await peer.script(models={"test-model:latest": {"memory_context": 8192}})
    assert await refused(server) == (
        "The model test-model needs more memory than Ollama has. Choose a smaller one, or let it read less at a time "
        "(AGENT_OLLAMA__CONTEXT_TOKENS)."
    )
    assert "model requires more system memory (21.3 GiB) than is available (7.9 GiB)" in caplog.text


@pytest.mark.fault("ollama: a model that is missing, or deleted between two turns")
async def test_a_model_that_is_missing_or_deleted_is_named(peer: OllamaPeer, server: OllamaServer) -> None:
    missing = "Ollama has no model test-model. Choose another one, or get it with: ollama pull test-model"
    await answered(server)
    await peer.script(models={"test-model:latest": None})
    assert await refused(server) == missing
    assert await refused(server) == missing, "also when its description is asked for again"
    await peer.script(says("back"), models={"test-model:latest": {}})
    assert (await answered(server)).text == "back"


@pytest.mark.parametrize(
    ("status", "error", "sentence"),
    [
        (400, "registry.ollama.ai/library/test-model:latest does not support tools", "cannot use tools"),
        (400, '"test-model" does not support chat', "cannot chat"),
        (503, "server busy, please try again.  maximum pending requests exceeded", "is busy or away"),
        (401, "unauthorized", "refused the key"),
    ],
)
async def test_a_refusal_says_what_to_do(
    peer: OllamaPeer, server: OllamaServer, status: int, error: str, sentence: str
) -> None:
    await peer.script(refusal(status, error))
    assert sentence in await refused(server)


@pytest.mark.fault("ollama: a server that is away, or that starts later")
async def test_a_server_that_is_away_is_named_and_one_that_starts_later_is_found() -> None:
    with ollama_process(started=False) as process:
        async with new_session() as session:
            server = OllamaServer(session, process.url.removesuffix("/mcp"), retries=Retries(1))
            assert await refused(server) == (
                "Ollama cannot be reached, so the model test-model was not asked. Try again later."
            )
            process.start()
            async with scripted_peer(process) as peer:
                await peer.script(says("here"))
                assert (await answered(server)).text == "here"


@pytest.mark.fault("ollama: a server that is killed in mid-answer")
async def test_a_server_that_is_killed_in_mid_answer_is_a_lost_connection_and_serves_again_later() -> None:
    with ollama_process() as process:
        async with scripted_peer(process) as peer, new_session() as session:
            server = OllamaServer(session, peer.url, retries=Retries(1))
            await peer.script(answer({"text": "half "}, {"hang": True}))
            with pytest.raises(ProviderError) as caught:
                await followed(server.chat_model(MODEL), Accumulator(), process.kill)
            assert caught.value.code == "interrupted"
            process.start()
            assert (await answered(server)).text == "Hello from the peer."


@pytest.mark.fault("ollama: something else in Ollama's place")
async def test_something_else_in_ollamas_place_is_named_as_that() -> None:
    async with openai_upstream() as other, new_session() as session:
        server = OllamaServer(session, other.endpoint, retries=Retries(1))
        assert "answers, but has no chat at its address" in await refused(server)


async def test_a_model_of_the_cloud_has_its_own_context(peer: OllamaPeer, server: OllamaServer) -> None:
    await peer.script(models={"far:latest": {"remote_host": "https://ollama.com:443"}})
    await answered(server, model="far")
    async with new_session() as session:
        await answered(OllamaServer(session, peer.url, "key", context=8192), options=SHAPED)
    first, second = (await peer.seen()).bodies
    assert [body["options"]["num_ctx"] for body in (first, second)] == [32_768, 32_768]
    assert "format" not in second


@pytest.mark.fault("ollama: a key in a refusal")
async def test_the_key_is_sent_and_never_shown(peer: OllamaPeer) -> None:
    await peer.script(says("yes"), refusal(400, "bad key secret-key"), key="secret-key")
    async with new_session() as session:
        server = OllamaServer(session, peer.url, "secret-key", retries=Retries(1))
        assert (await answered(server)).text == "yes"
        with pytest.raises(ProviderError) as caught:
            await answered(server)
    assert "secret-key" not in f"{caught.value} {caught.value.text}"
    assert (await peer.seen()).requests[0]["headers"]["authorization"] == "Bearer secret-key"
