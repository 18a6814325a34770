"""Parameters of a request: refused, forwarded, or reported as without effect; never dropped silently."""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says
from tests.support.http_api import http_api, said

COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/responses"
HALF = "\ud800"  # half a surrogate pair: JSON can encode it, no text can hold it
HUGE = 10**30


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def asking(**body: Any) -> dict[str, Any]:
    return {"messages": [said("Hi")], **body}


def called(name: str, arguments: str) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def result(text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "call_1", "content": text}


def unreadable() -> Iterator[tuple[str, dict[str, Any]]]:
    """Bodies with half a surrogate pair, wherever text can stand."""
    for path in (COMPLETIONS, "/chat", "/runs"):
        yield path, {"messages": [said(HALF)]}
        yield path, {"messages": [said([{"type": "text", "text": HALF}])]}  # type: ignore[arg-type]
        yield path, asking(system_prompt=HALF)
        yield path, {"messages": [said("?"), called("x", f'{{"a": "{HALF}"}}'), result("1")]}
        yield path, {"messages": [said("?"), called("x", "{}"), result(HALF)]}
        yield path, asking(model=HALF)
    yield COMPLETIONS, asking(stop=HALF)
    yield COMPLETIONS, asking(stop=["a", HALF])
    yield COMPLETIONS, asking(reasoning_effort=HALF)
    yield COMPLETIONS, asking(tools=[function("x", description=HALF)])
    yield COMPLETIONS, asking(tools=[function("x", parameters={"type": "object", HALF: 1})])
    yield COMPLETIONS, asking(response_format={"type": "json_object", "x": [HALF]})
    yield RESPONSES, {"input": HALF}
    yield RESPONSES, {"input": "?", "instructions": HALF}
    yield RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text", "text": HALF}]}]}
    yield RESPONSES, {"input": "?", "previous_response_id": HALF}
    yield "/session/start", {"title": HALF}
    yield "/approvals/appr_0000", {"decision": "approve", "arguments": {"a": HALF}}
    yield "/markdown", {"texts": [HALF]}


@pytest.mark.fault("http api: half a surrogate pair in any text")
async def test_half_a_surrogate_pair_is_refused_wherever_text_can_stand(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        for path, body in unreadable():
            content = BytesIO(json.dumps(body).encode())
            reply = await api.call("POST", path, data=content, headers={"Content-Type": "application/json"})
            assert (reply.status, reply.error["code"]) == (400, "invalid_value"), (path, body, reply.text)
        assert api.upstream.requests == []


@pytest.mark.fault("http api: numbers beyond 64 bits, two tools of one name")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, asking(seed=HUGE)),
        (COMPLETIONS, asking(max_completion_tokens=HUGE)),
        (COMPLETIONS, asking(max_tokens=HUGE)),
        ("/chat", asking(max_tokens=HUGE)),
        (RESPONSES, {"input": "?", "max_output_tokens": HUGE}),
        (COMPLETIONS, asking(tools=[function("x", parameters={"type": "object", "maxProperties": HUGE})])),
        (COMPLETIONS, asking(tools=[function("twice"), function("once"), function("twice")])),
        (RESPONSES, {"input": "?", "tools": [{"type": "function", "name": "twice"}] * 2}),
    ],
)
async def test_unusable_numbers_and_tool_names_are_refused(path: str, body: dict[str, Any], tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        reply = await api.post(path, body)
        assert (reply.status, reply.error["code"]) == (400, "invalid_value"), reply.text
        assert api.upstream.requests == []
    if "tools" in body and "twice" in str(body):
        assert "two tools are called 'twice'" in reply.error["message"]


async def test_what_providers_know_is_passed_on(tmp_path: Path) -> None:
    given = {
        "parallel_tool_calls": False, "logit_bias": {"50256": -100}, "user": "u-1", "verbosity": "low",
        "service_tier": "flex", "prompt_cache_key": "k", "safety_identifier": "s", "frequency_penalty": 0.5,
    }  # fmt: skip
    async with http_api(then=says("ok"), tmp_path=tmp_path) as api:
        answer = await api.complete("?", **given)
        [request] = api.upstream.requests
    assert {name: request.body.get(name) for name in given} == given
    assert answer.json["trace"]["warnings"] == []
    assert answer.json["trace"]["config"]["parallel_tool_calls"] is False


async def test_what_has_no_effect_stands_in_the_trace(tmp_path: Path) -> None:
    given = {"logprobs": True, "top_logprobs": 3, "functions": [{"name": "old"}], "store": False, "best_of": None}
    async with http_api(then=says("ok"), tmp_path=tmp_path) as api:
        replies = [
            await api.complete("?", **given),
            await api.post("/chat", {**asking(stop="END"), "messages": [{**said("?"), "tools": [function("mine")]}]}),
            await api.complete("?", max_tokens=100_000),
            await api.post("/chat", asking(max_tokens=4096)),
        ]
        traces = [reply.json["trace"] for reply in replies]
        stored = [(await api.get(f"/traces/{trace['trace_id']}")).json["warnings"] for trace in traces]
        sent = [request.body for request in api.upstream.requests]
    expected = [
        [f"{name} had no effect: it is not known here" for name in ("functions", "logprobs", "top_logprobs")],
        [f"{name} had no effect: it is not known here" for name in ("messages.tools", "stop")],
        ["max_tokens is 100000, above the documented 4096; it was sent as it is"],
        [],
    ]
    assert [trace["warnings"] for trace in traces] == expected
    assert stored == expected
    assert sent[2]["max_tokens"] == 100_000
    assert not {"logprobs", "functions", "top_logprobs"} & sent[0].keys()
    assert "mine" not in str(sent[1]["tools"])


SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ASKED: dict[str, Any] = {
    "text": {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}, "verbosity": "low"},
    "reasoning": {"effort": "high", "summary": "auto"},
    "parallel_tool_calls": False,
    "metadata": {"team": "blue"},
    "user": "u-1",
    "prompt_cache_key": "k",
}


UNKNOWN: dict[str, Any] = {"top_logprobs": 2, "include": ["reasoning.encrypted_content"], "max_tool_calls": None}


async def test_a_response_is_made_as_requested_and_has_the_requested_values(tmp_path: Path) -> None:
    async with http_api(then=says('{"name": "Ann"}'), tmp_path=tmp_path) as api:
        answer = (await api.post(RESPONSES, {"input": "Who?", **ASKED, **UNKNOWN})).json
        again = (await api.get(f"/v1/responses/{answer['id']}")).json
        streamed = (await api.post(RESPONSES, {"input": "Who?", **ASKED, "stream": True})).chunks
        plain = (await api.post(RESPONSES, {"input": "Who?"})).json
        trace = (await api.get(f"/traces/{answer['trace_id']}")).json
        sent = api.upstream.requests[0].body
    form = {"name": "person", "schema": SCHEMA, "strict": True}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": form}
    assert (sent["reasoning_effort"], sent["parallel_tool_calls"], sent["user"]) == ("high", False, "u-1")
    assert (sent["verbosity"], sent["prompt_cache_key"]) == ("low", "k")
    for body in (answer, again, streamed[0]["response"], streamed[-1]["response"]):
        assert body["text"] == ASKED["text"]
        assert body["reasoning"] == {"effort": "high", "summary": None}
        assert (body["parallel_tool_calls"], body["metadata"]) == (False, {"team": "blue"})
    assert (plain["text"], plain["parallel_tool_calls"]) == ({"format": {"type": "text"}}, True)
    assert (plain["metadata"], plain["reasoning"]) == ({}, {"effort": None, "summary": None})
    unknown = ("include", "reasoning.summary", "top_logprobs")
    assert trace["warnings"] == [f"{name} had no effect: it is not known here" for name in unknown]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("conversation", "conv_1"),
        ("background", True),
        ("prompt", {"id": "pmpt_1"}),
        ("metadata", {"a": 1}),
        ("text", {"format": {"type": "json_schema"}}),
    ],
)
async def test_a_response_that_cannot_be_made_as_asked_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        reply = await api.post(RESPONSES, {"input": "?", name: value})
        assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")
        assert api.upstream.requests == []
    assert name in reply.error["message"]


async def test_the_header_of_the_zone_counts_at_every_route_of_answers(tmp_path: Path) -> None:
    async with http_api(then=says("Hi."), tmp_path=tmp_path) as api:
        for path, body in (
            ("/v1/chat/completions", {"messages": [said("Hi")]}),
            ("/v1/responses", {"input": "Hi"}),
            ("/chat", {"messages": [said("Hi")]}),
        ):
            await api.call("POST", path, json=body, headers={"X-Timezone": "Asia/Tokyo"})
        sent = [request.body["messages"] for request in api.upstream.requests]
    for messages in sent:
        assert "in the time zone Asia/Tokyo." in messages[0]["content"]
        assert messages[-1]["content"].endswith("UTC+0900.]")
    assert len(sent) == 3
