"""Pictures that callers of the HTTP API send, as parts or as files: they reach models that see."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from task.llm.scripted import says
from tests.support.core import API_KEY
from tests.support.http_api import Api, said, uploaded
from tests.support.image_deployment import PNG
from tests.support.product import MODEL, product
from tests.support.upstream import openai_upstream

DATA = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
SCRIPT = (says("A cat."), says("Still a cat."))


def asked(*files: dict[str, Any]) -> dict[str, Any]:
    parts = [{"type": "file", "file": {"file_id": file["id"]}} for file in files]
    return said("What is this?") | {"content": [{"type": "text", "text": "What is this?"}, *parts]}


def shown(message: dict[str, Any]) -> list[str]:
    """The URLs of the pictures that a model received with a message."""
    content: Any = message["content"]
    return [] if isinstance(content, str) else [p["image_url"]["url"] for p in content if p["type"] == "image_url"]


def text(message: dict[str, Any]) -> str:
    content: Any = message["content"]
    return content if isinstance(content, str) else "\n".join(p["text"] for p in content if p["type"] == "text")


@pytest.mark.parametrize("backend", ["dial", "openai"])
async def test_a_picture_sent_as_a_file_is_seen_in_every_turn_of_its_session(backend: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"dial_api_key": API_KEY, "backend": backend}
    async with product(*SCRIPT, tmp_path=tmp_path, sees=True, **settings) as running, ClientSession() as session:
        api = Api(running.agent_url, running.upstream, session)
        picture = await uploaded(api, "cat.png", PNG, "image/png")
        drawing = await uploaded(api, "cat.svg", b"<svg/>", "image/svg+xml")
        chat_answer = (await api.post("/chat", {"messages": [asked(picture, drawing)]})).json
        again = await api.complete("Sure?", session_id=chat_answer["session_id"])
        kept = (await api.get(f"/session/{chat_answer['session_id']}/messages")).json["messages"]
    first, second = (request.messages for request in running.upstream.requests)
    assert shown(first[-1]) == shown(second[1]) == [picture["url"] if backend == "dial" else DATA]
    assert "cat.svg" in text(first[-1])
    assert again.json["choices"][0]["message"]["content"] == "Still a cat."
    assert kept[0]["content"].startswith("What is this?\n\nAttached files:\n- cat.png (image/png): ")
    assert [item["url"] for item in kept[0]["attachments"]] == [picture["url"], drawing["url"]]


@pytest.mark.fault("http api: a picture for a model that sees none")
async def test_a_model_that_sees_nothing_gets_a_note_of_every_picture(tmp_path: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": DATA}}
    async with (
        product(*SCRIPT, tmp_path=tmp_path, dial_api_key=API_KEY) as running,
        ClientSession() as session,
    ):
        api = Api(running.agent_url, running.upstream, session)
        picture = await uploaded(api, "cat.png", PNG, "image/png")
        question = asked(picture)
        question["content"].append(part)
        reply = await api.post("/v1/chat/completions", {"messages": [question], "model": MODEL})
    [request] = running.upstream.requests
    assert reply.status == 200
    assert shown(request.messages[-1]) == []
    assert text(request.messages[-1]).count("cannot see pictures") == 2


async def test_a_picture_stays_in_its_session_for_a_model_that_sees(tmp_path: Path) -> None:
    part = {"type": "image_url", "image_url": {"url": DATA}}
    question = said("?") | {"content": [{"type": "text", "text": "What is this?"}, part]}
    async with openai_upstream(says("I see nothing.")) as other:
        blind = {"type": "chat", "endpoint": f"{other.endpoint}/openai/deployments/blind/chat/completions"}
        settings: dict[str, Any] = {"dial_api_key": API_KEY, "sees": True, "models": {"blind": blind}}
        async with product(*SCRIPT, tmp_path=tmp_path, **settings) as running, ClientSession() as session:
            api = Api(running.agent_url, running.upstream, session)
            chat_answer = (await api.post("/chat", {"messages": [question], "model": "blind"})).json
            await api.complete("And you?", session_id=chat_answer["session_id"])
    assert shown(other.requests[0].messages[-1]) == []
    assert shown(running.upstream.requests[0].messages[1]) == [DATA]
