"""Attachments of an answer are in the bodies of `/v1` and `/chat` too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aiohttp import ClientSession

from task.llm.scripted import says, wants
from tests.support.core import API_KEY
from tests.support.http_api import Api, said
from tests.support.image_deployment import PNG, image_deployment
from tests.support.openapi_document import faults
from tests.support.product import product

TURN = (wants("image_generation_tool", prompt="a cat"), says("Here."))


async def test_a_made_picture_is_attached_to_every_form_of_the_answer(tmp_path: Path) -> None:
    from openai import AsyncOpenAI

    question: Any = [said("Paint a cat")]
    async with (
        image_deployment() as images,
        product(*TURN, *TURN, *TURN, *TURN, tmp_path=tmp_path, models=images.models, dial_api_key=API_KEY) as running,
        ClientSession() as session,
        AsyncOpenAI(base_url=f"{running.agent_url}/v1", api_key="none", max_retries=0, timeout=20) as openai,
    ):
        images.core = running.core.url
        api = Api(running.agent_url, running.upstream, session)
        whole = (await api.complete("Paint a cat")).json["choices"][0]
        stream = (await api.complete("Paint a cat", stream=True)).chunks
        chat = (await api.post("/chat", {"messages": question})).json
        async with openai.chat.completions.stream(model="test-model", messages=question) as streamed:
            read = (await streamed.get_final_completion()).choices[0].message.model_dump()
        contents = [
            (await openai.files.content(item["file_id"])).content
            for item in (*whole["message"]["custom_content"]["attachments"], *chat["attachments"])
        ]
    last = stream[-1]["choices"][0]
    assert last["finish_reason"] == whole["finish_reason"] == "stop"
    [delta] = last["delta"]["custom_content"]["attachments"]
    assert delta.pop("index") == 0
    for item in (*whole["message"]["custom_content"]["attachments"], delta, *chat["attachments"]):
        assert item["type"] == "image/png"
        assert item["title"].startswith("Generated Image")
        assert item["url"].startswith("files/")
    assert [item["type"] for item in read["custom_content"]["attachments"]] == ["image/png"]
    assert contents == [PNG, PNG]


async def test_an_answer_without_attachments_has_no_further_field(tmp_path: Path) -> None:
    async with (
        product(says("Hi"), says("Hi"), tmp_path=tmp_path, dial_api_key=API_KEY) as running,
        ClientSession() as session,
    ):
        api = Api(running.agent_url, running.upstream, session)
        message = (await api.complete("?")).json["choices"][0]["message"]
        chat = (await api.post("/chat", {"messages": [said("?")]})).json
    assert "custom_content" not in message
    assert chat["attachments"] == []


async def test_openais_client_reads_a_made_file_in_the_annotations_of_a_response(tmp_path: Path) -> None:
    from openai import AsyncOpenAI

    async with (
        image_deployment() as images,
        product(*TURN, *TURN, says("A cat."), tmp_path=tmp_path, models=images.models, dial_api_key=API_KEY) as running,
        ClientSession() as session,
        AsyncOpenAI(base_url=f"{running.agent_url}/v1", api_key="none", max_retries=0, timeout=20) as openai,
    ):
        images.core = running.core.url
        api = Api(running.agent_url, running.upstream, session)
        document = (await api.get("/openapi.json")).json
        whole = await openai.responses.create(model="test-model", input="Paint a cat")
        kept = await openai.responses.retrieve(whole.id)
        events = (await api.post("/v1/responses", {"input": "Paint a cat", "stream": True})).chunks
        output = [item.model_dump(exclude_none=True) for item in whole.output]
        again: Any = [said("Paint a cat"), *output, said("What is it?")]
        after = await openai.responses.create(model="test-model", input=again)
        [message] = whole.output
        assert message.type == "message"
        [part] = message.content
        assert part.type == "output_text"
        [noted] = part.annotations
        assert noted.type == "file_citation"
        content = (await openai.files.content(noted.file_id)).content
    assert content == PNG
    assert noted.filename.endswith(".png")
    assert kept.output == whole.output
    assert [item["file_id"] for item in whole.model_dump()["attachments"]] == [noted.file_id]
    assert whole.model_dump()["attachments"] == kept.model_dump()["attachments"]
    assert after.output_text == "A cat."
    assert [event["type"] for event in events][-6:-3] == [
        "response.output_text.delta", "response.output_text.annotation.added", "response.output_text.done",
    ]  # fmt: skip
    [added] = [event["annotation"] for event in events if event["type"] == "response.output_text.annotation.added"]
    assert added == {**noted.model_dump(), "file_id": added["file_id"], "filename": added["filename"]}
    assert events[-1]["response"]["output"][0]["content"][0]["annotations"] == [added]
    for event in events:
        assert faults(document, "ResponseEvent", event) == []
