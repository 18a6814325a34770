"""What a DIAL request asks of the model: sent to it, or named in the trace."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.app import OWNER
from task.conversation.inputs import NO_ZONE
from task.llm.scripted import says, wants
from task.store.trace_records import Trace
from tests.support.product import DEPLOYMENT, Product, product
from tests.support.stores import opened, sqlite_url

SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
SENT: dict[str, Any] = {
    "stop": ["END"], "seed": 7, "reasoning_effort": "low", "frequency_penalty": 0.5, "presence_penalty": -0.5,
    "logit_bias": {"50256": -100}, "user": "u-1", "parallel_tool_calls": False, "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"}, "verbosity": "low", "temperature": 0.1, "top_p": 0.9,
    "response_format": {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA, "strict": True}},
}  # fmt: skip
OWN_TOOL = {"type": "function", "function": {"name": "mine", "parameters": {"type": "object"}}}
UNUSED: dict[str, Any] = {
    "tools": [OWN_TOOL], "tool_choice": {"type": "function", "function": {"name": "mine"}}, "logprobs": True,
    "max_prompt_tokens": 1_000, "addons": ["a"],
}  # fmt: skip


async def asked(p: Product, **fields: Any) -> dict[str, Any]:
    """The whole answer to a request with these fields, sent through Core."""
    status, answer = await replied(p, **fields)
    assert status == 200, answer
    return answer["choices"][0]["message"]


async def replied(p: Product, **fields: Any) -> tuple[int, dict[str, Any]]:
    """Status and body for a request with these fields, sent through Core."""
    body = {"messages": [{"role": "user", "content": "25*47?"}], **fields, "stream": False}
    path = f"{p.core.url}/openai/deployments/{DEPLOYMENT}/chat/completions"
    async with (
        aiohttp.ClientSession() as session,
        session.post(path, json=body, headers={"Api-Key": "key-one"}) as response,
    ):
        return response.status, await response.json()


async def traces_of(folder: Path) -> list[Trace]:
    """The traces of an agent that has ended, the oldest first."""
    async with opened(sqlite_url(folder / "agent")) as store:
        return list(reversed((await store.traces.list(OWNER)).items))


async def test_every_option_that_the_model_takes_is_sent_to_it_in_every_step(tmp_path: Path) -> None:
    items = (says("Let me see.") & wants("calculator", expression="25*47"), says('{"sum": 1175}'))
    async with product(*items, tmp_path=tmp_path) as p:
        answer = await asked(p, **SENT)
        sent = [{name: request.body.get(name) for name in SENT} for request in p.upstream.requests]
    assert sent == [SENT, SENT]
    assert answer["content"] == '{"sum": 1175}'
    [trace] = await traces_of(tmp_path)
    assert trace.warnings == ()


@pytest.mark.fault("request: options without effect")
async def test_what_has_no_effect_is_not_sent(tmp_path: Path) -> None:
    async with product(says("ok"), tmp_path=tmp_path) as p:
        await asked(p, **UNUSED)
        sent = p.upstream.requests[0].body
    assert not {"logprobs", "max_prompt_tokens", "addons", "tool_choice"} & sent.keys()
    assert "mine" not in [tool["function"]["name"] for tool in sent["tools"]]


@pytest.mark.fault("request: options that hold text, where traces keep none")
@pytest.mark.fault("request: options without effect")
async def test_the_trace_names_what_the_provider_does_not_take_and_keeps_no_text_of_the_options(tmp_path: Path) -> None:
    async with product(says("ok"), tmp_path=tmp_path, profile="reasoning") as p:
        await asked(p, stop=["Ann's secret"], user="ann", seed=1)
        sent = p.upstream.requests[0].body
    [trace] = await traces_of(tmp_path)
    assert trace.warnings == ("stop had no effect: the provider of test-model does not take it",)
    assert (sent.get("stop"), sent["seed"]) == (None, 1)
    assert (trace.config["seed"], trace.config["user"]) == (1, "given")
    assert "Ann" not in str(trace)


@pytest.mark.fault("request: a choice of a tool that there is not")
async def test_a_choice_of_our_own_tools_holds_for_the_first_step_and_of_others_is_refused(tmp_path: Path) -> None:
    named = {"type": "function", "function": {"name": "calculator"}}
    async with product(wants("calculator", expression="1"), then=says("ok"), tmp_path=tmp_path) as p:
        await asked(p, tool_choice=named)
        await asked(p, tool_choice="none")
        status, answer = await replied(p, tool_choice={"type": "function", "function": {"name": "calculater"}})
        sent = [(request.body.get("tool_choice"), "tools" in request.body) for request in p.upstream.requests]
    assert sent == [(named, True), (None, True), (None, False)]
    text = "tool_choice names 'calculater', which is no tool of yours or of the agent's."
    assert (status, answer["error"]["message"]) == (400, text)
    assert answer["error"]["display_message"].startswith(text)


@pytest.mark.fault("request: a time zone that does not exist, is a path, very long, or full of control characters")
@pytest.mark.parametrize(
    ("zone", "shown", "warnings"),
    [("Asia/Tokyo", "Asia/Tokyo", ()), ("../../etc/passwd", "Europe/Berlin", (NO_ZONE,)), ("", "Europe/Berlin", ())],
)
async def test_the_prompt_names_the_zone_of_the_chat_else_that_of_the_settings(
    zone: str, shown: str, warnings: tuple[str, ...], tmp_path: Path
) -> None:
    async with product(says("Hi."), tmp_path=tmp_path, timezone="Europe/Berlin") as p:
        p.reader.headers["X-Timezone"] = zone
        await p.reader.ask("Hello")
        prompt = p.upstream.requests[0].body["messages"][0]["content"]
    assert f"in the time zone {shown}." in prompt
    [trace] = await traces_of(tmp_path)
    assert trace.warnings == warnings
