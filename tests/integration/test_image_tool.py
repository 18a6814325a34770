"""Pictures for a person in DIAL Chat: made by a deployment behind Core, attached, and every way in which that fails."""

import asyncio
import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.conversation.messages import Message
from task.llm.scripted import Reply, says, wants
from task.tools.deployment.image_generation_tool import ImageGenerationTool
from task.tools.toolbox import Toolbox
from tests.support.chat_reader import chat_reader
from tests.support.choices import CALLER, RecordingChoice
from tests.support.core import local_core
from tests.support.core_files import CoreFiles
from tests.support.core_peers import config
from tests.support.http_api import http_api
from tests.support.image_deployment import NAME, PNG, REVISED, attaching, image_deployment, never
from tests.support.product import Product, product
from tests.support.tool_calls import call_of
from tests.support.upstream import Received

TOOL = "image_generation_tool"
PROMPT = "A smiling cat wearing sunglasses"
BASE64 = base64.b64encode(PNG).decode()


def tool_result(p: Product) -> str:
    """What the model learns of the call."""
    return p.upstream.requests[1].messages[-1]["content"]


@pytest.mark.usefixtures("chat")
async def test_10_a_picture_is_attached_with_its_revised_prompt_and_the_user_can_open_it(tmp_path: Path) -> None:
    turns = [wants(TOOL, prompt=PROMPT), says("Here is your cat.")]
    async with image_deployment() as images, product(*turns, tmp_path=tmp_path, models=images.models) as p:
        images.core = p.core.url
        answer = await p.reader.ask("Generate a picture of a smiling cat wearing sunglasses")
        [picture] = answer.attachments.values()
        status, content = await p.reader.get(picture["url"])
        foreign, _ = await p.other.get(picture["url"])
    assert (status, content) == (200, PNG)
    assert foreign == 403
    assert picture["type"] == "image/png"
    assert picture["title"].startswith("Generated Image")
    assert "/appdata/general-purpose-agent/" in picture["url"]
    [stage] = answer.stages.values()
    assert stage.status == "completed"
    assert stage.content.startswith(f"## Request arguments:\n\n**Prompt**: {PROMPT}\n\n## Response:\n")
    assert f"**Revised Prompt**: {REVISED}" in stage.content
    assert [item["url"] for item in stage.attachments] == [picture["url"]]
    assert answer.content == "Here is your cat."
    assert "attached to the answer" in tool_result(p)
    assert picture["url"] in tool_result(p)


async def test_the_deployment_receives_prompt_options_and_the_callers_headers_with_its_own_key(
    tmp_path: Path,
) -> None:
    turns = [wants(TOOL, prompt=PROMPT, size="1792x1024", style="natural"), says("Done.")]
    async with image_deployment() as images, product(*turns, tmp_path=tmp_path, models=images.models) as p:
        images.core = p.core.url
        p.reader.headers = {"X-Team": "blue"}
        await p.reader.ask("Draw it")
        seen = images.peer.last
    assert seen.json["messages"] == [{"role": "user", "content": PROMPT}]
    assert seen.json["custom_fields"] == {"configuration": {"size": "1792x1024", "style": "natural"}}
    assert seen.json["stream"] is True
    assert seen.headers["X-Team"] == "blue"
    assert "X-CONVERSATION-ID" in seen.headers
    assert seen.key not in ("key-one", p.upstream.requests[0].headers["api-key"])


async def test_two_pictures_of_one_step_have_titles_and_addresses_of_their_own(tmp_path: Path) -> None:
    turns = [wants(TOOL, prompt="A cat") & wants(TOOL, prompt="A cat"), says("Two cats.")]
    async with image_deployment() as images, product(*turns, tmp_path=tmp_path, models=images.models) as p:
        images.core = p.core.url
        answer = await p.reader.ask("Two cats, please")
    assert len({item["title"] for item in answer.attachments.values()}) == 2
    assert len({item["url"] for item in answer.attachments.values()}) == 2


@pytest.mark.fault("image: the image deployment times out")
@pytest.mark.parametrize("limits", [{"deployments": {"image_seconds": 0.5}}, {"limits": {"tool_seconds": 0.5}}])
async def test_a_deployment_that_takes_too_long_is_stopped(limits: dict[str, Any], tmp_path: Path) -> None:
    turns = [wants(TOOL, prompt=PROMPT), says("It took too long.")]
    async with (
        image_deployment(never(asyncio.Event())) as images,
        product(*turns, tmp_path=tmp_path, models=images.models, **limits) as p,
    ):
        answer = await p.reader.ask("Draw a cat")
        async with asyncio.timeout(20):
            await images.peer.cancelled.wait()
    assert "was stopped after 0.5 s without a result" in tool_result(p)
    assert (answer.stages[0].status, answer.content) == ("failed", "It took too long.")


@pytest.mark.fault("image: there is no image deployment")
async def test_without_an_image_deployment_the_tool_is_not_offered(tmp_path: Path) -> None:
    async with product(wants(TOOL, prompt=PROMPT), says("No."), tmp_path=tmp_path, dial_api_key="key-one") as p:
        await p.reader.ask("Draw a cat")
        ready = await ready_tools(p)
    assert TOOL not in p.upstream.requests[0].tools
    assert f"There is no tool '{TOOL}'" in tool_result(p)
    assert TOOL not in ready
    assert "calculator" in ready


@pytest.mark.fault("image: an image deployment that the caller's role may not use")
async def test_the_tool_is_offered_to_the_people_whose_role_may_use_the_deployment(tmp_path: Path) -> None:
    async with image_deployment() as images:
        entry = {**images.models[NAME], "userRoles": ["painter"]}
        keys = {"key-three": {"project": "THREE", "role": "painter"}}
        async with product(says("No."), says("Yes."), tmp_path=tmp_path, models={NAME: entry}, keys=keys) as p:
            await p.reader.ask("Draw a cat")
            async with chat_reader(p.core.url, "key-three") as painter:
                await painter.ask("Draw a cat")
    assert [TOOL in request.tools for request in p.upstream.requests] == [False, True]


async def test_the_tool_is_offered_while_core_does_not_say_what_it_lists(tmp_path: Path) -> None:
    async with http_api(says("Hi."), tmp_path=tmp_path) as api:
        await api.complete("Hi")
    assert TOOL in api.upstream.requests[0].tools


async def ready_tools(p: Product) -> list[str]:
    async with aiohttp.ClientSession() as session, session.get(f"{p.agent_url}/ready") as response:
        return (await response.json())["tools"]


async def test_the_image_deployment_is_not_offered_as_a_model_to_talk_to(tmp_path: Path) -> None:
    async with image_deployment() as images, product(tmp_path=tmp_path, models=images.models) as p:
        status, schema = await p.reader.get("deployments/general-purpose-agent/configuration")
    assert status == 200
    assert json.loads(schema)["properties"]["model"]["enum"] == ["test-model"]


@pytest.mark.fault("image: the image deployment returns base64")
async def test_the_documented_constructor_is_enough(tmp_path: Path) -> None:
    answer_of = attaching({"title": "Image", "type": "image/png", "data": BASE64})
    choice, caller = RecordingChoice(), replace(CALLER, api_key="key-one")
    async with image_deployment(answer_of) as images, local_core(config(models=images.models), tmp_path) as core:
        tool = ImageGenerationTool(core.url)
        [message] = await Toolbox([tool]).call_all([call_of(tool.name, {"prompt": PROMPT})], choice, caller)
        async with CoreFiles.of(core.url, "key-one") as mine:
            found = await mine.get(choice.attachments[0].url or "")
    assert (found.status, found.body) == (200, PNG)
    assert choice.stages[0].status == "completed"
    assert isinstance(message, Message)
    assert BASE64[:40] not in message.text() + choice.stages[0].content


async def test_a_configured_deployment_gets_the_conversations_file_and_answers_through_its_stage(
    tmp_path: Path,
) -> None:
    def looks(received: Received) -> Reply:
        [url] = re.findall(r"^- .*: (files/\S+)$", received.messages[-1]["content"], re.MULTILINE)
        return wants("look", question="What is it?", file_urls=[url])

    look = {
        "name": "look",
        "description": "Looks.",
        "deployment": NAME,
        "prompt": "question",
        "attachments": ["image/*"],
    }
    tools: Any = {"image": "off", "tools": [look]}
    async with (
        image_deployment(attaching(text="A grey square")) as images,
        product(looks, says("It is grey."), tmp_path=tmp_path, models=images.models, deployments=tools) as p,
    ):
        file = await p.reader.upload("my picture.png", PNG, "image/png")
        answer = await p.reader.ask("What is on it?", file)
        [sent] = images.peer.last.json["messages"]
    assert sent["custom_content"]["attachments"] == [file]
    assert tool_result(p) == "A grey square"
    assert answer.stages[0].content.endswith("## Response:\n\nA grey square")
    assert answer.content == "It is grey."


async def test_another_persons_file_is_not_passed_to_a_deployment(tmp_path: Path) -> None:
    def looks(_: Received) -> Reply:
        return wants("look", prompt="What is it?", file_urls=[stolen[0]])

    stolen: list[str] = []
    look = {"name": "look", "description": "Looks.", "deployment": NAME, "attachments": ["image/*"]}
    tools: Any = {"tools": [look]}
    async with (
        image_deployment(attaching(text="A secret")) as images,
        product(looks, says("I may not."), tmp_path=tmp_path, models=images.models, deployments=tools) as p,
    ):
        stolen.append((await p.other.upload("secret.png", PNG, "image/png"))["url"])
        await p.reader.ask("What is on it?")
    assert "does not let this request read one of its files" in tool_result(p)
    assert images.peer.requests == []
