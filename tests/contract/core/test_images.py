"""The image model that local Core serves itself: labelled placeholders, or the images API of an upstream."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from PIL import Image

from task.local.core.models import ModelChoice, ScriptedDemo, UpstreamModel
from tests.support.core import RunningCore, local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import DONE, Handler, answers, ask, calling, config, dialling, peer
from tests.support.image_deployment import NAME, PNG

PROMPT = "A smiling cat wearing sunglasses"
MADE = {"b64_json": base64.b64encode(PNG).decode(), "revised_prompt": "A cheerful cat"}

pytestmark = pytest.mark.local_core


@asynccontextmanager
async def core_with(choice: ModelChoice, tmp_path: Path, **sections: Any) -> AsyncGenerator[RunningCore]:
    async with local_core(config(**sections), tmp_path, model=choice, image_model=NAME) as core:
        yield core


def demo(tmp_path: Path) -> ScriptedDemo:
    (tmp_path / "script.yaml").write_text("name: empty\n")
    return ScriptedDemo(tmp_path / "script.yaml")


def wanted(prompt: str = PROMPT, stream: bool = False, **wishes: str) -> dict[str, Any]:
    fields = {"custom_fields": {"configuration": wishes}} if wishes else {}
    return {"messages": [{"role": "user", "content": prompt}], "stream": stream, **fields}


def attached(document: Any) -> dict[str, dict[str, Any]]:
    """The attachments of a complete answer by title."""
    [choice] = document["choices"]
    return {item["title"]: item for item in choice["message"]["custom_content"]["attachments"]}


async def test_the_placeholder_model_is_listed_as_what_it_is(tmp_path: Path) -> None:
    described = {NAME: {"type": "chat", "displayName": "DALL-E 3", "endpoint": "http://adapter/"}}
    async with core_with(demo(tmp_path), tmp_path, models=described) as core, dialling(core) as dial:
        [listed] = [model for model in await dial.deployments.list() if model.id == NAME]
        async with calling(core) as session, session.get(f"/openai/models/{NAME}") as answer:
            model = await answer.json()
    assert listed.id == NAME
    assert model["display_name"] == "Placeholder pictures (no image model is connected)"
    assert "not a generated picture" in model["description"]
    assert model["capabilities"]["chat_completion"] is True


async def test_a_placeholder_is_a_picture_in_the_users_own_files(tmp_path: Path) -> None:
    async with core_with(demo(tmp_path), tmp_path) as core, calling(core) as session:
        answer = await ask(session, NAME, wanted())
        image = attached(answer.json)["Image"]
        async with (
            CoreFiles.of(core.url, "key-one") as mine,
            CoreFiles.of(core.url, "key-two") as theirs,
        ):
            found, foreign = await mine.get(image["url"]), await theirs.get(image["url"])
    assert answer.json["choices"][0]["message"]["content"].startswith("This is a placeholder")
    assert attached(answer.json)["Revised prompt"]["data"] == f"A placeholder with the words: {PROMPT}"
    assert image["url"].startswith(f"files/{mine.bucket}/appdata/{NAME}/")
    assert (found.status, found.headers["Content-Type"], foreign.status) == (200, "image/png", 403)
    assert found.body.startswith(b"\x89PNG\r\n\x1a\n")
    with Image.open(io.BytesIO(found.body)) as picture:
        picture.load()
        assert picture.size == (1024, 1024)
        assert len(picture.getcolors(2**24) or ()) > 3


@pytest.mark.parametrize(
    ("size", "expected"),
    [("1792x1024", (1792, 1024)), ("64x99999", (1024, 1024)), ("10x9000", (128, 2048)), ("huge", (1024, 1024))],
)
async def test_a_placeholder_has_the_requested_size_within_limits(
    size: str, expected: tuple[int, int], tmp_path: Path
) -> None:
    async with core_with(demo(tmp_path), tmp_path) as core, calling(core) as session:
        image = attached((await ask(session, NAME, wanted("Кот 🐈 " * 300, size=size))).json)["Image"]
        async with CoreFiles.of(core.url, "key-one") as mine:
            content = (await mine.get(image["url"])).body
    with Image.open(io.BytesIO(content)) as picture:
        assert picture.size == expected


async def test_an_upstream_makes_the_picture_with_its_own_key(tmp_path: Path) -> None:
    async with peer(answers(body={"data": [MADE]})) as upstream:
        choice = UpstreamModel(f"{upstream.url}/v1/", "local-model", "upstream-key")
        async with core_with(choice, tmp_path) as core, calling(core) as session:
            body = wanted(size="1792x1024", style="natural", other="ignored")
            answer = await ask(session, NAME, body)
            async with CoreFiles.of(core.url, "key-one") as mine:
                found = await mine.get(attached(answer.json)["Image"]["url"])
    assert (found.status, found.body) == (200, PNG)
    assert attached(answer.json)["Revised prompt"]["data"] == "A cheerful cat"
    assert upstream.last.url == "/v1/images/generations"
    assert upstream.last.headers["Authorization"] == "Bearer upstream-key"
    assert "Api-Key" not in upstream.last.headers
    assert upstream.last.json == {
        "model": NAME,
        "prompt": PROMPT,
        "n": 1,
        "size": "1792x1024",
        "style": "natural",
        "response_format": "b64_json",
    }


async def test_the_models_entry_in_the_file_describes_the_upstreams_one(tmp_path: Path) -> None:
    described = {NAME: {"type": "chat", "displayName": "DALL-E 3", "endpoint": "http://adapter/"}}
    choice = UpstreamModel("http://127.0.0.1:9/v1", "local-model")
    async with core_with(choice, tmp_path, models=described) as core, calling(core) as session:
        async with session.get(f"/openai/models/{NAME}") as answer:
            assert (await answer.json())["display_name"] == "DALL-E 3"
        assert (await ask(session, NAME, wanted())).status == 502


async def test_a_stream_contains_the_attachments_and_ends_like_every_stream(tmp_path: Path) -> None:
    async with core_with(demo(tmp_path), tmp_path) as core, calling(core) as session:
        answer = await ask(session, NAME, wanted(stream=True))
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert answer.body.endswith(DONE)
    assert [item["title"] for item in deltas[0]["custom_content"]["attachments"]] == ["Revised prompt", "Image"]
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    assert {event["object"] for event in events} == {"chat.completion.chunk"}


@pytest.mark.parametrize("stream", [True, False])
async def test_an_application_reaches_the_picture_with_its_per_request_key(stream: bool, tmp_path: Path) -> None:
    """The application calls the image model with its key and reads the picture while its own request lasts."""
    read: dict[str, Any] = {}

    async def application(request: web.Request) -> web.StreamResponse:
        key = request.headers["Api-Key"]
        async with calling(running[0], key) as session:
            answer = await ask(session, NAME, wanted(stream=stream))
            url = answer.text.split('"url":"')[1].split('"')[0]
            async with CoreFiles.of(running[0].url, key) as files:
                read["picture"] = await files.get(url)
                read["changed"] = await files.delete(url)
        return web.json_response({"choices": []})

    running: list[RunningCore] = []
    async with (
        peer(application) as app,
        core_with(demo(tmp_path), tmp_path, applications={"app": {"endpoint": app.url}}) as core,
        calling(core) as session,
    ):
        running.append(core)
        assert (await ask(session)).status == 200
    assert read["picture"].status == 200
    assert read["picture"].body.startswith(b"\x89PNG")
    assert read["changed"].status == 200


@pytest.mark.parametrize(
    "messages",
    [
        [],
        "Hello",
        [{"role": "assistant", "content": "Hello"}],
        [{"role": "user", "content": " "}],
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}]}],
        [{"role": "user", "content": None}],
    ],
)
async def test_a_request_without_a_prompt_is_refused(messages: Any, tmp_path: Path) -> None:
    async with core_with(demo(tmp_path), tmp_path) as core, calling(core) as session:
        answer = await ask(session, NAME, {"messages": messages})
    assert (answer.status, answer.json["error"]["message"]) == (400, "The last user message holds no prompt")


async def test_the_prompt_is_the_text_of_the_last_user_message(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "A cat"}, {"type": "text", "text": "at noon"}]
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "A dog"}]
    async with core_with(demo(tmp_path), tmp_path) as core, calling(core) as session:
        answer = await ask(session, NAME, {"messages": [*messages, {"role": "user", "content": parts}]})
    assert attached(answer.json)["Revised prompt"]["data"].endswith("words: A cat\nat noon")


POLICY = {"error": {"message": "Your request was rejected.", "code": "content_policy_violation"}}
FAULTS: dict[str, tuple[Handler, int, str]] = {
    "refused": (answers(400, POLICY), 400, "content_policy_violation"),
    "busy": (answers(429, {"error": {"message": "slow down"}}), 503, "Service is not available"),
    "no-image-model": (answers(404, {"detail": "Not Found"}), 404, "makes no pictures"),
    "broken": (answers(500, {"error": {"message": "oops", "code": "500"}}), 500, "oops"),
    "no-picture": (answers(body={"data": []}), 500, "The image model failed"),
    "empty-entry": (answers(body={"data": [{}]}), 500, "without a picture"),
    "no-base64": (answers(body={"data": [{"b64_json": "!!"}]}), 500, "The image model failed"),
    "not-a-picture": (answers(body={"data": [{"b64_json": "aGVsbG8="}]}), 500, "not answer with a picture"),
    "not-json": (answers(200, []), 500, "The image model failed"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_upstreams_failure_reaches_the_caller_like_a_deployments(fault: str, tmp_path: Path) -> None:
    handler, status, words = FAULTS[fault]
    async with peer(handler) as upstream:
        choice = UpstreamModel(upstream.url, "local-model", "upstream-key")
        async with core_with(choice, tmp_path) as core, calling(core) as session:
            answer = await ask(session, NAME, wanted())
    assert answer.status == status
    assert words in answer.text
    assert "upstream-key" not in answer.text


async def test_a_link_in_place_of_a_picture_is_passed_on_and_not_fetched(tmp_path: Path) -> None:
    async with (
        peer(answers(body={"data": [{"url": "https://pictures.example/a.png"}]})) as upstream,
        core_with(UpstreamModel(upstream.url, "m"), tmp_path) as core,
        calling(core) as session,
    ):
        answer = await ask(session, NAME, wanted())
    assert attached(answer.json)["Image"]["url"] == "https://pictures.example/a.png"
    assert len(upstream.requests) == 1


async def test_a_client_that_disconnects_stops_the_upstream(tmp_path: Path) -> None:
    asked = asyncio.Event()

    async def never(_: web.Request) -> web.StreamResponse:
        asked.set()
        await asyncio.Event().wait()
        return web.Response()

    async with peer(never) as upstream:
        choice = UpstreamModel(upstream.url, "local-model")
        async with core_with(choice, tmp_path) as core, calling(core) as session:
            waiting = asyncio.create_task(ask(session, NAME, wanted()))
            async with asyncio.timeout(5):
                await asked.wait()
            waiting.cancel()
            async with asyncio.timeout(10):
                await upstream.cancelled.wait()


async def test_core_with_models_of_its_configuration_adds_none(tmp_path: Path) -> None:
    async with local_core(config(), tmp_path, image_model=NAME) as core, calling(core) as session:
        assert (await ask(session, NAME, wanted())).status == 404
