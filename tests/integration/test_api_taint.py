"""Text from outside is not forgotten by the HTTP API when a client returns answers without the results behind them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from tests.support.api_client import coded
from tests.support.http_api import Api, http_api, said
from tests.support.upstream import Item

SENDER = '''\
"""A tool that runs by a rule, unless text from outside is in the conversation."""

from task.tools.declare import tool
from task.tools.models import Effect


@tool(effects={Effect.WRITE, Effect.NETWORK})
def send(text: str) -> str:
    """Send a line."""
    return f"sent: {text}"
'''
SEND = wants("send", text="a")
HI, HELLO, GO = said("Hi"), said("Hello.", "assistant"), said("Send a")
CHAT = [HI, HELLO, GO]


@asynccontextmanager
async def agent(*script: Item, tmp_path: Path) -> AsyncGenerator[Api]:
    path = tmp_path / "sender.py"
    path.write_text(SENDER)
    rules = [{"action": "allow", "tool": "send"}]
    async with http_api(*script, tmp_path=tmp_path, tool_paths=[str(path)], permissions={"rules": rules}) as api:
        yield api


async def status(api: Api, path: str, body: dict[str, Any]) -> str:
    """How the run of the request ended."""
    reply = await api.post(path, body)
    assert reply.status in (200, 202), reply.text
    newest = (await api.get("/runs?limit=1")).json["runs"][0]
    await api.events(newest["run_id"])
    return (await api.get(f"/runs/{newest['run_id']}")).json["status"]


DOORS = pytest.mark.parametrize(
    ("path", "name", "more"),
    [
        ("/v1/chat/completions", "messages", {}),
        ("/chat", "messages", {}),
        ("/runs", "messages", {}),
        ("/v1/responses", "input", {}),
        ("/v1/responses", "input", {"store": False}),
    ],
    ids=["completions", "chat", "runs", "responses", "unstored"],
)


@pytest.mark.fault("approval: results from outside that the next request does not bring along")
@DOORS
async def test_an_answer_that_comes_without_its_results_counts_as_text_from_outside(
    path: str, name: str, more: dict[str, Any], tmp_path: Path
) -> None:
    async with agent(SEND, tmp_path=tmp_path) as api:
        assert await status(api, path, {name: CHAT, **more}) == "suspended"


@DOORS
async def test_a_first_message_is_not_from_outside(path: str, name: str, more: dict[str, Any], tmp_path: Path) -> None:
    async with agent(SEND, says("Sent."), tmp_path=tmp_path) as api:
        assert await status(api, path, {name: [GO], **more}) == "finished"


async def test_a_session_knows_the_results_behind_its_answers(tmp_path: Path) -> None:
    async with agent(says("Hello."), SEND, says("Sent."), tmp_path=tmp_path) as api:
        session = {"session_id": (await api.post("/session/start")).json["session_id"]}
        assert await status(api, "/chat", {"messages": [HI], **session}) == "finished"
        assert await status(api, "/chat", {"messages": CHAT, **session}) == "finished"


@pytest.mark.fault("approval: results from outside that the next request does not bring along")
async def test_an_answer_that_the_session_does_not_hold_counts_as_text_from_outside(tmp_path: Path) -> None:
    async with agent(says("Hello."), SEND, tmp_path=tmp_path) as api:
        session = {"session_id": (await api.post("/session/start")).json["session_id"]}
        await api.post("/chat", {"messages": [HI], **session})
        other = [HI, said("Something else.", "assistant"), GO]
        assert await status(api, "/chat", {"messages": other, **session}) == "suspended"


@pytest.mark.fault("approval: results from outside that the next request does not bring along")
async def test_text_from_outside_is_not_forgotten_in_the_session_of_a_question(tmp_path: Path) -> None:
    async with agent(SEND, says("Sent."), SEND, tmp_path=tmp_path) as api:
        first = await api.post("/v1/chat/completions", {"messages": CHAT})
        session = {"session_id": first.json["session_id"]}
        decision = coded("approve", first.json["choices"][0]["message"]["content"])
        assert (await api.complete(decision, **session)).json["status"] == "finished"
        assert (await api.complete("Again", **session)).json["status"] == "suspended"
        kept = (await api.get(f"/session/{session['session_id']}/messages")).json["messages"]
    assert [message.get("unsourced") for message in kept[:3]] == [None, True, None]
