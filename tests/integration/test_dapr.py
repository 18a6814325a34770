"""Models behind a Dapr sidecar: what is sent, what is understood, and what every fault becomes; against a process."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from task.conversation.messages import FunctionCall, Message, Role, ToolCall, assistant, system, tool_message, user
from task.errors import ProviderError, SettingsError
from task.llm.base import Accumulator, Delta, Finish, ModelOptions, TextDelta, ToolCallDelta, ToolSchema, Usage
from task.llm.dapr import DaprServer, call_failure, target_of
from task.llm.failures import explained
from task.llm.scripted import says, wants
from task.llm.transport import Retries
from task.llm.window import ContextWindow
from task.product.backends import BACKENDS
from task.settings import Settings
from tests.support.dapr import HANGS, MODEL, DaprPeer, answer, dapr_process, refusal, scripted_peer
from tests.support.mcp_processes import ServerProcess
from tests.support.ports import free_port
from tests.support.upstream import openai_upstream

QUESTION = [system("You are brief."), user("Count to five.")]
COUNT: ToolSchema = {
    "type": "function",
    "function": {
        "name": "count",
        "description": "Counts.",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "integer", "minimum": 1}, "by": {"type": "number"}},
            "required": ["to"],
        },
    },
}
STOP: ToolSchema = {"type": "function", "function": {"name": "stop", "description": "Stops.", "parameters": {}}}
PLAIN, ONCE = ModelOptions(), Retries(1)
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,cG5n"}}
BOUND = 30  # seconds


@pytest.fixture(scope="module")
def process() -> Generator[tuple[ServerProcess, int]]:
    with dapr_process() as running:
        yield running


@pytest.fixture
async def peer(process: tuple[ServerProcess, int]) -> AsyncGenerator[DaprPeer]:
    async with scripted_peer(process) as peer:
        yield peer


@pytest.fixture
async def server(peer: DaprPeer) -> AsyncGenerator[DaprServer]:
    async with connected(peer.address) as server:
        yield server


@asynccontextmanager
async def connected(address: str, token: str = "", retries: Retries = ONCE, **more: Any) -> AsyncGenerator[DaprServer]:
    server = DaprServer(address, token, retries=retries, **more)
    try:
        yield server
    finally:
        await server.close()


async def deltas(
    server: DaprServer,
    messages: Sequence[Message] = QUESTION,
    tools: Sequence[ToolSchema] = (COUNT,),
    options: ModelOptions = PLAIN,
    model: str = MODEL,
) -> list[Delta]:
    async with asyncio.timeout(BOUND):
        return [delta async for delta in server.chat_model(model).stream(messages, tools, options)]


async def answered(server: DaprServer, *given: Any, **more: Any) -> Accumulator:
    received = Accumulator()
    for delta in await deltas(server, *given, **more):
        received.add(delta)
    return received


async def refused(server: DaprServer, *given: Any, **more: Any) -> str:
    """The sentence that a person reads instead of an answer."""
    with pytest.raises(ProviderError) as caught:
        await deltas(server, *given, **more)
    return caught.value.display_message or explained(caught.value, MODEL)


# What is sent


@pytest.mark.fault("dapr: a history of thousands of messages, and every script")
async def test_the_whole_history_is_sent_each_time_in_daprs_own_messages(peer: DaprPeer, server: DaprServer) -> None:
    call = ToolCall("c1", FunctionCall("count", '{"to":2}'))
    history = [
        *QUESTION, assistant(None, [call]), tool_message(call, ""), assistant("Two."), Message(Role.DEVELOPER, "Now."),
        Message(Role.USER, [{"type": "text", "text": "a"}, {"type": "text", "text": "ünï 漢 🎈"}], name="ann"),
    ]  # fmt: skip
    await answered(server, history)
    seen = await peer.seen()
    assert [message for part in seen.bodies[0]["inputs"] for message in part["messages"]] == [
        {"of_system": {"content": [{"text": "You are brief."}]}},
        {"of_user": {"content": [{"text": "Count to five."}]}},
        {"of_assistant": {"tool_calls": [{"id": "c1", "function": {"name": "count", "arguments": '{"to":2}'}}]}},
        {"of_tool": {"tool_id": "c1", "name": "count", "content": [{}]}},
        {"of_assistant": {"content": [{"text": "Two."}]}},
        {"of_system": {"content": [{"text": "Now."}]}},
        {"of_user": {"name": "ann", "content": [{"text": "a\nünï 漢 🎈"}]}},
    ]
    assert [message["role"] for message in seen.prompts[0]] == [
        "system", "user", "assistant", "tool", "assistant", "system", "user",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "sent", "names"),
    [
        (None, None, ["count", "stop"]),
        ("auto", "auto", ["count", "stop"]),
        ("none", "none", ["count", "stop"]),
        ("required", "required", ["count", "stop"]),
        ("stop", "required", ["stop"]),
        ({"type": "function", "function": {"name": "count"}}, "required", ["count"]),
    ],
)
async def test_a_named_choice_of_a_tool_is_that_tool_alone(
    peer: DaprPeer, server: DaprServer, choice: Any, sent: str | None, names: list[str]
) -> None:
    await answered(server, QUESTION, (COUNT, STOP), ModelOptions(tool_choice=choice))
    (body,) = (await peer.seen()).bodies
    assert (body.get("tool_choice"), [tool["function"]["name"] for tool in body["tools"]]) == (sent, names)


@pytest.mark.fault("dapr: a choice of a tool that there is not, or without tools")
async def test_a_choice_needs_tools_and_must_name_one_of_them(peer: DaprPeer, server: DaprServer) -> None:
    await answered(server, QUESTION, (), ModelOptions(tool_choice="required"))
    assert "tool_choice" not in (await peer.seen()).bodies[0]
    sentence = await refused(server, QUESTION, (COUNT,), ModelOptions(tool_choice="jump"))
    assert sentence == "tool_choice 'jump' is none of auto, none, required and no tool. Tools: count."


@pytest.mark.fault("dapr: options that Dapr cannot carry")
async def test_options_are_sent_and_those_without_effect_reported(peer: DaprPeer, server: DaprServer) -> None:
    limited = await answered(server, options=ModelOptions(0.5, 0.9, 50, ["END"], 7))
    await deltas(server, options=ModelOptions(0.0))
    assert limited.warnings == ["max_tokens has no effect before Dapr 1.19"]
    first, second = (await peer.seen()).bodies
    assert first.keys() - second.keys() == {"temperature", "max_tokens"}
    assert (first["temperature"], first["max_tokens"]) == (0.5, "50")


@pytest.mark.fault("dapr: a sidecar whose configuration allows conversations only")
async def test_a_sidecar_that_may_not_describe_itself_answers_where_the_component_is_set(peer: DaprPeer) -> None:
    await peer.script(metadata=False)
    async with connected(peer.address, component=MODEL) as server:
        assert (await answered(server)).text == "Hello from the peer."


async def test_personal_data_is_scrubbed_from_what_is_marked(peer: DaprPeer, server: DaprServer) -> None:
    await peer.script(says("Write to b@c.de."), says("Write to b@c.de."))
    marked = Message(Role.USER, "I am a@b.de, call +49 30 1234567.", scrub_pii=True)
    plain = await answered(server, [user("I am x@y.de."), marked, user("z@y.de")])
    scrubbed = await answered(server, options=ModelOptions(extra={"scrub_pii": True}))
    seen = await peer.seen()
    assert [part.get("scrub_pii") for part in seen.bodies[0]["inputs"]] == [None, True, None]
    assert [message["content"] for message in seen.prompts[0]] == [
        "I am x@y.de.", "I am <EMAIL_ADDRESS>, call <PHONE_NUMBER>.", "z@y.de",
    ]  # fmt: skip
    assert (plain.text, scrubbed.text) == ("Write to b@c.de.", "Write to <EMAIL_ADDRESS>.")


@pytest.mark.fault("dapr: a response format that the sidecar would drop without a word")
@pytest.mark.parametrize("wanted", [{"type": "string"}, {}])
async def test_a_response_format_becomes_a_prompt(peer: DaprPeer, server: DaprServer, wanted: dict[str, Any]) -> None:
    form = {"type": "json_schema", "json_schema": {"schema": wanted}} if wanted else {"type": "json_object"}
    received = await answered(server, options=ModelOptions(extra={"response_format": form}))
    assert received.warnings == ["response_format is part of the prompt only: Dapr does not enforce it"]
    [prompt] = (await peer.seen()).prompts
    assert prompt[0]["content"].startswith("You are brief.\n\nWrite your final answer as one JSON object")
    assert ('{"type":"string"}' in prompt[0]["content"]) is bool(wanted)


@pytest.mark.fault("dapr: a picture")
@pytest.mark.fault("dapr: a schema that is nested too deeply")
async def test_what_dapr_has_no_form_for_is_refused_with_a_sentence(server: DaprServer) -> None:
    sentence = await refused(server, [user([{"type": "text", "text": "What is it?"}, PICTURE])])
    assert sentence == "Dapr cannot carry pictures. Leave them out, or use another provider."
    assert not await server.accepts_images(MODEL)
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        schema = {"type": "array", "items": schema}
    tool = {"type": "function", "function": {"name": "deep", "description": "", "parameters": schema}}
    assert "nested too deeply for Dapr" in await refused(server, QUESTION, (tool,))


# What is understood


async def test_an_answer_comes_as_one_delta_with_its_usage(peer: DaprPeer, server: DaprServer) -> None:
    await peer.script(says("one ", "two 漢🎈", usage=Usage(7, 3)), wants("count", to=5))
    assert await deltas(server) == [TextDelta("one two 漢🎈"), Usage(7, 3), Finish("stop")]
    assert await deltas(server) == [
        ToolCallDelta(0, "call_00000001", "count", '{"to": 5}'), Usage(20, 5), Finish("tool_calls"),
    ]  # fmt: skip


@pytest.mark.fault("dapr: calls without ids, in several outputs")
async def test_all_outputs_are_one_answer_and_missing_ids_are_filled(peer: DaprPeer, server: DaprServer) -> None:
    calls = [{"name": "count", "arguments": json.dumps({"to": n}), "id": ""} for n in (1, 2)]
    await peer.script(
        answer({"text": "First", "reason": "unknown"}, {"text": "second", "calls": calls[:1]}, {"calls": calls[1:]})
    )
    received = await answered(server)
    message = received.message()
    assert (message.text(), received.finish_reason, received.usage) == ("First\nsecond", "tool_calls", Usage(20, 5))
    assert [call.function.arguments for call in message.tool_calls] == ['{"to": 1}', '{"to": 2}']
    first, second = (call.id for call in message.tool_calls)
    assert first
    assert second not in ("", first)


@pytest.mark.fault("dapr: an answer without output, or with a finish reason that nobody knows")
@pytest.mark.parametrize(
    ("reasons", "finish"),
    [(["unknown"], "stop"), ([""], "stop"), (["tool_calls"], "stop"), (["stop", "length"], "length"),
     (["content_filter"], "content_filter")],
)  # fmt: skip
async def test_the_finish_reason_is_one_that_callers_know(
    peer: DaprPeer, server: DaprServer, reasons: list[str], finish: str
) -> None:
    await peer.script(answer(*({"text": "x", "reason": reason} for reason in reasons)))
    assert (await answered(server)).finish_reason == finish


@pytest.mark.fault("dapr: whole numbers that became floats")
async def test_whole_numbers_that_became_floats_are_whole_again(peer: DaprPeer, server: DaprServer) -> None:
    await peer.script(wants("count", to=5.0, by=2.0), wants("count", to=2.5))
    found = [(await answered(server)).message().tool_calls[0].function.arguments for _ in range(2)]
    assert found == ['{"to": 5, "by": 2}', '{"to": 2.5}']


@pytest.mark.fault("dapr: arguments with numbers or a depth out of bounds")
@pytest.mark.parametrize(
    "arguments",
    ['{"to": 1e30}', '{"to": 2.0, "more": 1e999}', "[" * 10_000 + "]" * 10_000],
    ids=["a large number", "a number that cannot be written", "a depth that cannot be read"],
)
async def test_arguments_out_of_bounds_are_left_to_the_tool(peer: DaprPeer, server: DaprServer, arguments: str) -> None:
    await peer.script(answer({"calls": [{"name": "count", "arguments": arguments}]}))
    (call,) = [delta for delta in await deltas(server) if isinstance(delta, ToolCallDelta)]
    assert call.arguments == arguments


@pytest.mark.fault("dapr: arguments that are not JSON, from a component that always calls")
async def test_arguments_that_are_not_json_are_a_problem_of_their_call(peer: DaprPeer, server: DaprServer) -> None:
    await peer.script(answer({"calls": [{"name": "count", "arguments": "by,to"}]}))  # as `conversation.echo` does
    (call,) = (await answered(server)).message().tool_calls
    assert (call.name, call.function.arguments) == ("count", "{}")
    assert "not valid JSON" in (call.problem or "")


async def test_a_call_in_an_open_models_text_is_made_where_the_profile_says_so(peer: DaprPeer) -> None:
    await peer.script(says('```json\n{"name": "count", "arguments": {"to": 3}}\n```'))
    async with connected(peer.address, text_calls=True) as server:
        (call,) = (await answered(server)).message().tool_calls
    assert (call.name, json.loads(call.function.arguments)) == ("count", {"to": 3})


@pytest.mark.fault("dapr: an answer without output, or with a finish reason that nobody knows")
async def test_an_answer_without_output_is_a_failure(peer: DaprPeer, server: DaprServer) -> None:
    await peer.script(answer())
    assert await refused(server) == f"The model {MODEL} did not answer properly. Try again, or choose another model."


# Which component answers


@pytest.mark.parametrize(
    ("components", "chosen", "asked"),
    [(["only"], "", "only"), (["one", MODEL], "", MODEL), (["one", MODEL], "one", "one")],
)
async def test_the_component_is_named_or_the_only_one(
    peer: DaprPeer, components: list[str], chosen: str, asked: str
) -> None:
    await peer.script(components=dict.fromkeys(components, "conversation.openai"))
    async with connected(peer.address, component=chosen) as server:
        await answered(server)
        assert await server.models() == ([chosen] if chosen else components)
    assert (await peer.seen()).bodies[0]["name"] == asked


@pytest.mark.fault("dapr: a component that there is not, or several")
@pytest.mark.parametrize(
    ("components", "chosen", "sentence"),
    [
        (["one", "two"], "", "no single conversation component. It has one, two: choose one with"),
        ([], "", "no single conversation component. It has none: add one."),
        (["one"], "gone", "no conversation component gone. It has one: choose one with"),
    ],
)
async def test_an_unknown_component_is_refused(
    peer: DaprPeer, components: list[str], chosen: str, sentence: str
) -> None:
    await peer.script(components=dict.fromkeys(components, "conversation.openai"))
    async with connected(peer.address, component=chosen) as server:
        assert (await refused(server)).startswith(f"The Dapr sidecar at {peer.address} has {sentence}")


# What every fault becomes


@pytest.mark.fault("dapr: a provider's status in the text only")
@pytest.mark.parametrize(
    ("status", "requests", "sentence"),
    [
        (429, 2, "The model test-model is busy or over its limit. Try again in a minute."),
        (500, 2, "The model test-model did not answer properly. Try again, or choose another model."),
        (503, 2, "The model test-model is busy or away. Try again in a minute."),
        (400, 1, "The model test-model did not accept the conversation: The model provider refused the request"),
        (401, 1, "The model test-model refused the key. An operator has to check the model's credentials."),
    ],
)
async def test_the_providers_status_decides_on_a_retry(
    peer: DaprPeer, status: int, requests: int, sentence: str
) -> None:
    await peer.script(*[refusal(status, "the provider's words")] * requests)
    async with connected(peer.address, retries=Retries(2, pause=0.001)) as server:
        assert (await refused(server)).startswith(sentence)
        assert (await answered(server)).text == "Hello from the peer."
    assert len((await peer.seen()).requests) == requests + 1


@pytest.mark.fault("dapr: a provider's status in the text only")
@pytest.mark.parametrize(
    "words",
    [
        "googleapi: Error 429: Resource has been exhausted",
        "operation error Bedrock Runtime: Converse, https response error StatusCode: 429, RequestID: x",
        "429 Too Many Requests: slow down",
        "unexpected status code: 503, body: busy",
        "network error: failed to reach API server",
        "read tcp 127.0.0.1:1->127.0.0.1:2: read: connection reset by peer",
    ],
)
async def test_the_words_of_other_components_are_read_too(peer: DaprPeer, words: str) -> None:
    await peer.script({"error": words}, says("Here."))
    async with connected(peer.address, retries=Retries(2, pause=0.001)) as server:
        assert (await answered(server)).text == "Here."


@pytest.mark.fault("dapr: a context that is too long for the model")
async def test_a_context_that_is_too_long_is_recognised_and_cut(peer: DaprPeer, server: DaprServer) -> None:
    text = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens."
    await peer.script(refusal(400, text))
    history = [message for n in range(40) for message in (user(f"{n} " + "word " * 200), assistant("Yes."))] + [
        user("?")
    ]
    with pytest.raises(ProviderError) as caught:
        await deltas(server, history)
    shorter = ContextWindow().shorter(history, (), caught.value)
    assert shorter is not None
    assert 0 < len(shorter) < len(history)


@pytest.mark.fault("dapr: a request above 4 MiB")
async def test_a_request_above_the_sidecars_limit_names_its_flag(peer: DaprPeer, server: DaprServer) -> None:
    history = [message for n in range(10) for message in (user(f"{n} " + "x" * 2**19), assistant("Yes."))] + [user("?")]
    with pytest.raises(ProviderError) as caught:
        await deltas(server, history)
    assert caught.value.display_message == (
        f"The conversation is too long for the Dapr sidecar at {peer.address}. Start a new one, or ask an operator to "
        "raise the sidecar's limit (--max-body-size)."
    )
    shorter = ContextWindow().shorter(history, (), caught.value)
    assert shorter is not None
    assert (await answered(server, shorter)).text == "Hello from the peer."


@pytest.mark.fault("dapr: a token that is missing, wrong, or repeated in a refusal")
async def test_the_token_is_sent_and_never_shown_and_a_wrong_one_is_named(peer: DaprPeer) -> None:
    await peer.script(token="right")
    async with connected(peer.address, "right") as server:
        assert (await answered(server)).text == "Hello from the peer."
        await peer.script(refusal(400, "you sent right"))
        with pytest.raises(ProviderError) as caught:
            await deltas(server)
        assert caught.value.text.endswith("you sent ***")
    for wrong in ("", "wrong"):
        async with connected(peer.address, wrong) as server:
            sentence = await refused(server)
        assert sentence.startswith(f"The Dapr sidecar at {peer.address} refuses the token. Set DAPR_API_TOKEN to")


@pytest.mark.fault("dapr: a runtime without conversations with tools, or no sidecar at all")
async def test_a_runtime_that_is_too_old_is_named(peer: DaprPeer) -> None:
    await peer.script(version="1.15.9")
    async with connected(peer.address) as server:
        assert await refused(server) == (
            f"What answers at {peer.address} has no conversations with tools: it must be Dapr 1.16 or newer."
        )


@pytest.mark.fault("dapr: a runtime without conversations with tools, or no sidecar at all")
async def test_something_else_in_the_sidecars_place_is_no_sidecar() -> None:
    async with openai_upstream() as upstream:
        place = upstream.url.removeprefix("http://").partition("/")[0]
        async with connected(place) as server:
            assert f"does not answer at {place}" in await refused(server)


@pytest.mark.fault("dapr: a sidecar that is away, or whose host does not exist")
async def test_a_sidecar_that_is_away_is_named_with_host_and_port_within_the_usual_pauses() -> None:
    place, pauses = f"127.0.0.1:{free_port()}", list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async with connected(place, retries=Retries(sleep=sleep)) as server:
        sentence = await refused(server)
        assert await server.models() == []
    assert sentence == (
        f"The Dapr sidecar does not answer at {place}. Start it, or correct DAPR_GRPC_ENDPOINT or DAPR_GRPC_PORT."
    )
    assert 0 < sum(pauses) / 2 < 2, "each of the two waits for less than two seconds"


@pytest.mark.fault("dapr: a sidecar that is away, or whose host does not exist")
@pytest.mark.parametrize(
    "words",
    [
        "errors resolving sidecar:50001: [field:hostname lookup error:address lookup failed for sidecar:50001]",
        "DNS resolution failed for sidecar:50001: C-ares status is not ARES_SUCCESS: Domain name not found",
        "failed to connect to all addresses; last error: UNKNOWN: ipv4:192.0.2.1:50001: No route to host",
    ],
)  # fmt: skip
def test_a_host_that_there_is_not_is_named_too(words: str) -> None:
    error = call_failure(grpc.StatusCode.UNAVAILABLE, words, "sidecar:50001", "")
    assert "does not answer at sidecar:50001" in (error.display_message or "")


@pytest.mark.fault("dapr: a sidecar that takes connections and is silent")
async def test_while_a_sidecar_is_silent_the_event_loop_works_on() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        async with connected(place) as server:
            asking = asyncio.create_task(refused(server))
            rounds = 0
            while not asking.done():
                await asyncio.sleep(0.02)
                rounds += 1
            assert f"does not answer at {place}" in await asking
    assert rounds > 10


@pytest.mark.fault("dapr: a sidecar that is killed in mid-call, or restarts")
async def test_a_sidecar_that_is_killed_in_mid_call_is_a_lost_connection(process: tuple[ServerProcess, int]) -> None:
    async with scripted_peer(process, HANGS) as peer, connected(peer.address) as server:
        asking = asyncio.create_task(refused(server))
        await peer.seen(requests=1)
        peer.kill()
        assert await asking == f"The connection to the model {MODEL} was lost. Try again."
        await asyncio.to_thread(peer.start)


@pytest.mark.fault("dapr: a sidecar that is killed in mid-call, or restarts")
async def test_a_sidecar_that_restarts_in_mid_call_answers_the_retry(process: tuple[ServerProcess, int]) -> None:
    async with scripted_peer(process, HANGS) as peer:

        async def restarted(_: float) -> None:
            await asyncio.to_thread(peer.start)

        async with connected(peer.address, retries=Retries(2, sleep=restarted)) as server:
            asking = asyncio.create_task(answered(server))
            await peer.seen(requests=1)
            peer.kill()
            assert (await asking).text == "Hello from the peer."


@pytest.mark.fault("dapr: a slow answer, and an endless one")
@pytest.mark.system
async def test_a_slow_answer_is_waited_for_and_an_endless_one_is_ended_at_the_sidecar_too(peer: DaprPeer) -> None:
    await peer.script(answer({"text": "At last."}, seconds=0.3), HANGS)
    async with connected(peer.address) as patient:
        assert (await answered(patient)).text == "At last."
    async with connected(peer.address, seconds=3.0) as server:
        assert await refused(server) == (
            "The Dapr sidecar has been silent for too long. Try again, or choose another model."
        )
    assert (await peer.seen(stopped=1)).stopped == [MODEL]


@pytest.mark.fault("dapr: a caller that gives up")
async def test_a_cancelled_request_is_cancelled_at_the_sidecar(peer: DaprPeer, server: DaprServer) -> None:
    await peer.script(HANGS)
    asking = asyncio.create_task(answered(server))
    await peer.seen(requests=1)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await peer.seen(stopped=1)).stopped == [MODEL]
    assert (await answered(server)).text == "Hello from the peer."


# Settings


@pytest.mark.fault("dapr: an address that is none, or a client that is not installed")
@pytest.mark.fault("console commands: a token that cannot be sent")
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        *(("DAPR_GRPC_ENDPOINT", value) for value in ("nowhere/path", "ftp://host:1", "host:1?x=y", "host:port")),
        *(("DAPR_API_TOKEN", value) for value in ("tökén", "a\nb", "a\0b")),
    ],
)
def test_an_address_or_a_token_that_cannot_be_used_stops_the_start(setting: str, value: str) -> None:
    with pytest.raises(SettingsError, match=f"{setting} (is not an address such as|has a character that cannot be)"):
        BACKENDS["dapr"].check(Settings.model_validate({"backend": "dapr", setting.lower(): value}))


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("localhost:9", ("dns:localhost:9", False)),
        ("dapr.example.com?tls=true", ("dns:dapr.example.com:443", True)),
        ("[::1]:9", ("dns:[::1]:9", False)),
        ("unix:///run/dapr.sock", ("unix:///run/dapr.sock", False)),
    ],
)
def test_an_address_leads_where_daprs_own_clients_go(address: str, target: tuple[str, bool]) -> None:
    assert target_of(address) == target


@pytest.mark.fault("dapr: an address that is none, or a client that is not installed")
def test_without_its_client_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "task.llm.dapr", None)
    with pytest.raises(SettingsError) as caught:
        BACKENDS["dapr"].check(Settings.model_validate({"backend": "dapr"}))
    assert str(caught.value) == "Dapr needs its client: pip install 'dial-general-purpose-agent[dapr]'."
    BACKENDS["dial"].check(Settings())


# A child with `preexec_fn` is forked, as those of `task.processes` are, while gRPC's threads are at work.
FORKING = """
import asyncio, subprocess
import task.llm.dapr, grpc.aio

async def main():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        await channel.channel_ready()
        subprocess.run(["true"], preexec_fn=lambda: None, check=True)
    await server.stop(None)

asyncio.run(main())
"""


async def test_grpc_writes_nothing_into_the_log_when_a_process_is_started() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FORKING, env=environ, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        _, errors = await process.communicate()
    assert (process.returncode, errors.decode()) == (0, "")
