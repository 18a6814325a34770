"""The columns `/v1` and `/chat` of the matrix: the model is asked and a person reads what DIAL's door gives.

Compared is what both worlds have: the answer, the calls, every request to the model with its tools, and the questions
put to a person. Stages and hidden state are DIAL's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.prompts import SYSTEM_PROMPT
from tests.contract.test_matrix import CONVERSATIONS, FOLDER, Trace, normalised, replies, through_the_dial_door
from tests.support.core import API_KEY
from tests.support.http_api import Api
from tests.support.product import product
from tests.support.scripts import Conversation, Turn

COMMON = ("answer", "calls", "asked", "offered", "waits")


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda conversation: conversation.name)
async def test_the_http_doors_give_the_trace_of_the_dial_door(conversation: Conversation, tmp_path: Path) -> None:
    whole = await through_the_dial_door(conversation, "dial", tmp_path / "dial")
    expected = [{name: turn[name] for name in COMMON} for turn in whole]
    for path in ("/v1/chat/completions", "/chat"):
        assert await through_http(conversation, path, tmp_path / path.rpartition("/")[2]) == expected, path


async def through_http(conversation: Conversation, path: str, folder: Path) -> Trace:
    places: dict[str, str] = {}
    more: dict[str, Any] = {"tool_paths": [str(FOLDER / "notes.py")], "dial_api_key": API_KEY}
    async with (
        product(*replies(conversation, places), tmp_path=folder, **more) as running,
        aiohttp.ClientSession() as session,
    ):
        api = Api(running.agent_url, running.upstream, session)
        session_id = (await api.post("/session/start")).json["session_id"]
        return [await talked(turn, api, path, session_id, places) for turn in conversation.turns]


async def talked(turn: Turn, api: Api, path: str, session_id: str, places: dict[str, str]) -> dict[str, Any]:
    content: Any = turn.user
    if turn.attachments:
        files = [await stored(item, api, places) for item in turn.attachments]
        content = [{"type": "text", "text": turn.user}, *files]
    before = len(api.upstream.requests)
    body = {"messages": [{"role": "user", "content": content}], "system_prompt": SYSTEM_PROMPT}
    reply = await api.post(path, {**body, "session_id": session_id})
    assert reply.status == 200, reply.text
    told, requests = reply.json, api.upstream.requests[before:]
    messages = (await api.get(f"/session/{session_id}/messages")).json["messages"]
    waiting = (await api.get(f"/approvals?session_id={session_id}")).json["approvals"]
    trace = {
        "answer": told["response"] if path == "/chat" else told["choices"][0]["message"]["content"],
        "calls": calls_of(messages),
        "asked": [request.messages for request in requests],
        "offered": [request.tools for request in requests],
        "waits": [item["tool"] for item in waiting],
    }
    return normalised(trace, places)


def calls_of(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of the last turn: from its question on, or from the call that a decision was about."""
    start = max(place for place, message in enumerate(messages) if message["role"] == "user")
    calls = [call["function"] for message in messages[start:] for call in message.get("tool_calls", ())]
    return [{"tool": call["name"], "arguments": json.loads(call["arguments"])} for call in calls]


async def stored(item: dict[str, Any], api: Api, places: dict[str, str]) -> dict[str, Any]:
    form = aiohttp.FormData()
    content = (FOLDER / item["file"]).read_bytes()
    form.add_field("file", content, filename=item["title"], content_type=item["type"])
    file = (await api.call("POST", "/v1/files", data=form)).json
    places[item["title"].replace(".", "_")] = file["url"]
    return {"type": "file", "file": {"file_id": file["id"]}}
