"""The image model that local Core serves itself: labelled placeholders, or the images API of an upstream."""

import base64
import io
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web
from PIL import Image

from task.local.core.models import ModelChoice, UpstreamModel, scripted_demo
from tests.support.core import RunningCore, local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import Handler, answers, ask, calling, config, peer
from tests.support.image_deployment import NAME, PNG
from tests.support.replies import Reply

PROMPT = "A smiling cat wearing sunglasses"
DESCRIBED = {NAME: {"type": "chat", "displayName": "DALL-E 3", "endpoint": "http://adapter/"}}

pytestmark = pytest.mark.local_core


@asynccontextmanager
async def core_with(
    tmp_path: Path, choice: ModelChoice | None = None, **sections: Any
) -> AsyncGenerator[tuple[RunningCore, ClientSession, CoreFiles]]:
    """A Core with pictures of the choice, by default the demo, a caller, and the caller's files."""
    choice = choice or scripted_demo()
    async with (
        local_core(config(**sections), tmp_path, model=choice, image_model=NAME) as core,
        calling(core) as session,
        CoreFiles.of(core.url, "key-one") as files,
    ):
        yield core, session, files


def wanted(prompt: Any = PROMPT, stream: bool = False, **wishes: str) -> dict[str, Any]:
    fields = {"custom_fields": {"configuration": wishes}} if wishes else {}
    return {"messages": [{"role": "user", "content": prompt}], "stream": stream, **fields}


def attached(answer: Reply) -> dict[str, dict[str, Any]]:
    """The attachments of a complete answer by title."""
    [choice] = answer.json["choices"]
    return {item["title"]: item for item in choice["message"]["custom_content"]["attachments"]}


async def test_a_placeholder_is_listed_as_one_and_stored_in_the_users_own_files(tmp_path: Path) -> None:
    async with core_with(tmp_path, models=DESCRIBED) as (core, session, mine):
        async with session.get(f"/openai/models/{NAME}") as listing:
            model = await listing.json()
        answer = await ask(session, NAME, wanted("Кот 🐈 " * 300))
        image = attached(answer)["Image"]
        found = await mine.get(image["url"])
        async with CoreFiles.of(core.url, "key-two") as theirs:
            assert (await theirs.get(image["url"])).status == 403
    assert model["display_name"] == "Placeholder pictures (no image model is connected)"
    assert "not a generated picture" in model["description"]
    assert answer.json["choices"][0]["message"]["content"].startswith("This is a placeholder")
    assert attached(answer)["Revised prompt"]["data"].startswith("A placeholder with the words: Кот")
    assert image["url"].startswith(f"files/{mine.bucket}/appdata/{NAME}/")
    assert (found.status, found.headers["Content-Type"]) == (200, "image/png")
    with Image.open(io.BytesIO(found.body)) as picture:
        picture.load()
        assert picture.size == (1024, 1024)
        assert len(picture.getcolors(2**24) or ()) > 3


async def test_an_upstream_makes_the_picture_with_its_own_key(tmp_path: Path) -> None:
    made = {"b64_json": base64.b64encode(PNG).decode(), "revised_prompt": "A cheerful cat"}
    async with peer(answers(body={"data": [made]})) as upstream:
        choice = UpstreamModel(f"{upstream.url}/v1/", "local-model", "upstream-key")
        async with core_with(tmp_path, choice, models=DESCRIBED) as (_, session, mine):
            async with session.get(f"/openai/models/{NAME}") as listing:
                assert (await listing.json())["display_name"] == "DALL-E 3"
            answer = await ask(session, NAME, wanted(size="1792x1024", style="natural", other="ignored"))
            found = await mine.get(attached(answer)["Image"]["url"])
    assert (found.status, found.body) == (200, PNG)
    assert attached(answer)["Revised prompt"]["data"] == "A cheerful cat"
    assert upstream.last.url == "/v1/images/generations"
    assert upstream.last.headers["Authorization"] == "Bearer upstream-key"
    assert "Api-Key" not in upstream.last.headers
    wishes = {"size": "1792x1024", "style": "natural", "response_format": "b64_json"}
    assert upstream.last.json == {"model": NAME, "prompt": PROMPT, "n": 1} | wishes


@pytest.mark.parametrize("stream", [True, False])
async def test_an_application_reaches_the_picture_with_its_per_request_key(stream: bool, tmp_path: Path) -> None:
    """The application calls the image model with its key and reads the picture while its own request lasts."""

    async def application(request: web.Request) -> web.StreamResponse:
        key = request.headers["Api-Key"]
        async with calling(core, key) as own, CoreFiles.of(core.url, key) as files:
            answer = await ask(own, NAME, wanted(stream=stream))
            url = answer.text.split('"url":"')[1].split('"')[0]
            picture, changed = await files.get(url), await files.delete(url)
            return web.json_response([picture.status, picture.body.startswith(b"\x89PNG"), changed.status])

    async with peer(application) as app:
        entry = {"app": {"endpoint": app.url}}
        async with core_with(tmp_path, applications=entry) as (core, session, _):
            assert (await ask(session)).json == [200, True, 200]


NO_PROMPT = "The last user message holds no prompt"
PICTURE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,eA=="}}


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], NO_PROMPT),
        ("Hello", "A message is not in OpenAI's shape"),
        ([{"role": "assistant", "content": "Hello"}], NO_PROMPT),
        *((wanted(content)["messages"], NO_PROMPT) for content in (" ", None, [PICTURE_PART])),
    ],
)
async def test_a_request_without_a_prompt_is_refused(messages: Any, text: str, tmp_path: Path) -> None:
    async with core_with(tmp_path) as (_, session, _):
        answer = await ask(session, NAME, {"messages": messages})
    assert (answer.status, answer.json["error"]["message"]) == (400, text)


POLICY = {"error": {"message": "Your request was rejected.", "code": "content_policy_violation"}}
FAULTS: dict[str, tuple[Handler, int, str]] = {
    "refused": (answers(400, POLICY), 400, "content_policy_violation"),
    "busy": (answers(429, {"error": {"message": "slow down"}}), 503, "Service is not available"),
    "no-image-model": (answers(404, {"detail": "Not Found"}), 404, "makes no pictures"),
    "broken": (answers(500, {"error": {"message": "oops", "code": "500"}}), 500, "oops"),
    "no-picture": (answers(body={"data": []}), 500, "without a picture"),
    "not-a-picture": (answers(body={"data": [{"b64_json": "aGVsbG8="}]}), 500, "not answer with a picture"),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_upstreams_failure_reaches_the_caller_like_a_deployments(fault: str, tmp_path: Path) -> None:
    handler, status, words = FAULTS[fault]
    async with peer(handler) as upstream:
        choice = UpstreamModel(upstream.url, "local-model", "upstream-key")
        async with core_with(tmp_path, choice) as (_, session, _):
            answer = await ask(session, NAME, wanted())
    assert answer.status == status
    assert words in answer.text
    assert "upstream-key" not in answer.text


async def test_a_link_in_place_of_a_picture_is_passed_on_and_not_fetched(tmp_path: Path) -> None:
    link = "https://pictures.example/a.png"
    async with (
        peer(answers(body={"data": [{"url": link}]})) as upstream,
        core_with(tmp_path, UpstreamModel(upstream.url, "m")) as (_, session, _),
    ):
        answer = await ask(session, NAME, wanted())
    assert (attached(answer)["Image"]["url"], len(upstream.requests)) == (link, 1)
