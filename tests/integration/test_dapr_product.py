"""The product with Dapr as its backend: tools, streams, traces, personal data, and a component that never ends."""

import io
import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.conversation.inputs import without_time
from task.llm.scripted import says
from tests.support.dapr import DaprPeer, answer, dapr_process, scripted_peer
from tests.support.http_api import Api, http_api, said
from tests.support.mcp_processes import ServerProcess
from tests.support.product import DEPLOYMENT, product

MARKED = {"role": "user", "content": "I am a@b.de.", "scrub_pii": True}
Process = tuple[ServerProcess, int]


@pytest.fixture(scope="module")
def process() -> Generator[tuple[ServerProcess, int]]:
    with dapr_process() as running:
        yield running


@asynccontextmanager
async def agent(process: Process, folder: Path, *answers: Any, **settings: Any) -> AsyncGenerator[tuple[Api, DaprPeer]]:
    async with (
        scripted_peer(process, *answers) as peer,
        http_api(tmp_path=folder, backend="dapr", dapr_grpc_endpoint=peer.address, **settings) as api,
    ):
        yield api, peer


@pytest.mark.fault("dapr: options that Dapr cannot carry")
async def test_options_that_dapr_cannot_carry_stand_in_the_trace(process: Process, tmp_path: Path) -> None:
    given = {"top_p": 0.5, "stop": ["END"], "seed": 7, "max_tokens": 99, "temperature": 0.5, "reasoning_effort": "low"}
    async with agent(process, tmp_path) as (api, _):
        trace = (await api.complete("Hi", **given)).json["trace"]
    assert trace["warnings"] == [
        *(
            f"{name} had no effect: the provider of test-model does not take it"
            for name in ("reasoning_effort", "seed", "stop", "top_p")
        ),
        "max_tokens has no effect before Dapr 1.19",
    ]


async def test_marked_personal_data_never_reaches_model_or_caller(process: Process, tmp_path: Path) -> None:
    replies = [answer({"text": "Write to c@d.de."})] * 3
    async with agent(process, tmp_path, *replies) as (api, peer):
        texts = [
            (await api.post("/v1/chat/completions", {"messages": [MARKED], "scrub_pii": True})).json["choices"][0],
            (await api.post("/chat", {"messages": [MARKED], "scrub_pii": True})).json["response"],
            (await api.post("/v1/chat/completions", {"messages": [MARKED]})).json["choices"][0],
        ]
        seen = await peer.seen()
    assert [text if isinstance(text, str) else text["message"]["content"] for text in texts] == [
        "Write to &lt;EMAIL_ADDRESS>.", "Write to &lt;EMAIL_ADDRESS>.", "Write to c@d.de.",
    ]  # fmt: skip
    assert [without_time(prompt[-1]["content"]) for prompt in seen.prompts] == ["I am <EMAIL_ADDRESS>."] * 3


async def test_a_marked_message_stays_marked_in_its_session(process: Process, tmp_path: Path) -> None:
    async with agent(process, tmp_path) as (api, peer):
        session = (await api.post("/chat", {"messages": [MARKED]})).json["session_id"]
        await api.post("/chat", {"messages": [said("And now?")], "session_id": session})
        stored = (await api.get(f"/session/{session}/messages")).json["messages"]
        seen = await peer.seen()
    assert "a@b.de" not in str(seen.prompts)
    assert [message.get("scrub_pii", False) for message in stored] == [True, False, False, False]


async def test_a_marked_message_of_responses_is_scrubbed_too(process: Process, tmp_path: Path) -> None:
    system = {"role": "developer", "content": "Write to c@d.de.", "scrub_pii": True}
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "g@h.de", "scrub_pii": True}
    plain = {"role": "assistant", "content": "e@f.de"}
    async with agent(process, tmp_path) as (api, peer):
        await api.post("/v1/responses", {"input": [system, MARKED, call, result, plain, said("And now?")]})
        prompt = [without_time(message["content"]) for message in (await peer.seen()).prompts[0]]
        [trace] = (await api.get("/traces")).json["traces"]
    assert prompt[-5:] == ["I am <EMAIL_ADDRESS>.", "", "<EMAIL_ADDRESS>", "e@f.de", "And now?"]
    assert trace["warnings"] == ["scrub_pii had no effect on the system prompt"]


async def test_a_marked_message_of_dial_is_scrubbed_too(process: Process, tmp_path: Path) -> None:
    async with (
        scripted_peer(process, says("Write to c@d.de.")) as peer,
        product(tmp_path=tmp_path, backend="dapr", dapr_grpc_endpoint=peer.address) as p,
    ):
        url = f"{p.core.url}/openai/deployments/{DEPLOYMENT}/chat/completions"
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                url, json={"messages": [MARKED], "scrub_pii": True}, headers={"Api-Key": "key-one"}
            ) as response,
        ):
            answered = (await response.json())["choices"][0]["message"]["content"]
        assert answered == "Write to &lt;EMAIL_ADDRESS>."
        assert without_time((await peer.seen()).prompts[0][-1]["content"]) == "I am <EMAIL_ADDRESS>."


@pytest.mark.fault("dapr: scrub_pii for a provider that cannot")
async def test_other_providers_are_not_sent_it(tmp_path: Path) -> None:
    async with http_api(then=says("Hi."), tmp_path=tmp_path) as api:
        traces = [
            (await api.post("/v1/chat/completions", body)).json["trace"]
            for body in (
                {"messages": [MARKED]},
                {"messages": [said("Hi")], "scrub_pii": True},
                {"messages": [said("Hi")]},
            )
        ]
        sent = [request.body for request in api.upstream.requests]
    assert [trace["warnings"] for trace in traces] == [[], [], []]
    assert not any("scrub_pii" in str(body) for body in sent)


@pytest.mark.fault("dapr: a request above 4 MiB")
async def test_a_conversation_above_the_limit_is_cut_and_stays_marked(process: Process, tmp_path: Path) -> None:
    texts = [f"turn {n} of a@b.de " + "word " * 60_000 for n in range(8)]
    turns = [said(text, role) | {"scrub_pii": True} for text in texts for role in ("user", "assistant")]
    async with agent(process, tmp_path) as (api, peer):
        body = io.BytesIO(json.dumps({"messages": [*turns, said("And now?")]}).encode())
        headers = {"Content-Type": "application/json"}
        reply = await api.call("POST", "/v1/chat/completions", data=body, headers=headers)
        (prompt,) = (await peer.seen()).prompts
    assert (reply.status, reply.json["choices"][0]["message"]["content"]) == (200, "Hello from the peer.")
    assert without_time(prompt[-1]["content"]) == "And now?"
    assert 2 < len(prompt) < len(turns), "the system prompt, what still fits, and the question"
    assert "<EMAIL_ADDRESS>" in str(prompt)
    assert "a@b.de" not in str(prompt), "nor in the note on what was left out"
