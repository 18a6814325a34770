"""Deployments as tools: what reaches them, what comes back, and every fault as a sentence for the model."""

import base64
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from task.conversation.messages import Message
from task.core_client.files import DialFiles
from task.errors import SettingsError
from task.output.links import Suspicion
from task.output.sinks import DefangedChoice
from task.product.parts import default_tools
from task.settings import load_settings
from task.tools.base import BaseTool
from task.tools.deployment.deployment_tool import DeploymentAccess, DeploymentSpec, DeploymentTool
from task.tools.deployment.image_generation_tool import ImageGenerationTool
from task.tools.toolbox import Toolbox
from tests.support.choices import CALLER, RecordingChoice
from tests.support.core_peers import DONE, Handler, Peer, answers, chunk, peer, streams
from tests.support.image_deployment import PNG, attaching
from tests.support.tool_calls import call_of

BASE64 = base64.b64encode(PNG).decode()
PICTURE = {"title": "Image", "type": "image/png", "url": "files/user/appdata/dall-e-3/a.png"}
TRANSLATOR = DeploymentSpec("translate", "Translates.", "translator", prompt="text")


class MemoryUploads(DialFiles):
    """Files that were stored, by their URL."""

    def __init__(self) -> None:
        super().__init__("http://core")
        self.files: dict[str, tuple[bytes, str]] = {}

    async def upload(self, name: str, content: bytes, content_type: str, api_key: str, folder: str = "") -> str:
        assert api_key == CALLER.api_key
        url = f"files/user/appdata/agent/{len(self.files)}-{name}"
        self.files[url] = (content, content_type)
        return url

    async def adopt(self, url: str, api_key: str, max_size: int) -> str:
        return url


@dataclass
class Asked:
    """One call of a tool, made by the toolbox: its message, its stage, and what the deployment saw."""

    message: Message
    choice: RecordingChoice
    peer: Peer
    uploads: MemoryUploads

    @property
    def stage(self) -> str:
        return self.choice.stages[0].content


async def call(handler: Handler, spec: DeploymentSpec | None = None, max_bytes: int = 2**20, **arguments: Any) -> Asked:
    """The image tool's answer, or that of a tool with `spec`, to a call with these arguments."""
    uploads, choice = MemoryUploads(), RecordingChoice()
    async with peer(handler) as deployment:
        access = DeploymentAccess(files=uploads, max_bytes=max_bytes)
        tool: BaseTool = (
            ImageGenerationTool(deployment.url, access=access)
            if spec is None
            else DeploymentTool(deployment.url, spec, access=access)
        )
        given = arguments or {"prompt" if spec is None else spec.prompt: "A cat"}
        shown = DefangedChoice(choice, Suspicion(lambda _: True, lambda: False))  # as in every turn
        [message] = await Toolbox([tool]).call_all([call_of(tool.name, given)], shown, CALLER)
    assert isinstance(message, Message)
    return Asked(message, choice, deployment, uploads)


async def test_the_text_appears_in_the_stage_piece_by_piece_and_goes_to_the_model() -> None:
    parts = [chunk({"content": piece}) for piece in ("Guten ", "Tag")]
    asked = await call(streams(*parts, chunk({}, "stop") + DONE), TRANSLATOR, text="Good day")
    assert asked.message.text() == "Guten Tag"
    assert asked.stage == "## Request arguments:\n\n**Text**: Good day\n\n## Response:\n\nGuten Tag"
    assert asked.peer.last.json == {
        "model": "translator",
        "messages": [{"role": "user", "content": "Good day"}],
        "stream": True,
    }
    assert asked.peer.last.url == "/openai/deployments/translator/chat/completions"
    assert asked.peer.last.key == CALLER.api_key


async def test_arguments_and_fixed_values_are_the_deployments_configuration() -> None:
    spec = DeploymentSpec(
        "translate", "Translates.", "translator", prompt="text",
        arguments={"language": {"type": "string"}}, configuration={"language": "en", "formal": True},
    )  # fmt: skip
    asked = await call(attaching(text="Ja"), spec, text="Yes", language="de")
    assert asked.peer.last.json["custom_fields"] == {"configuration": {"language": "de", "formal": True}}


async def test_files_of_the_conversation_are_passed_along_by_their_address() -> None:
    spec = DeploymentSpec("see", "Looks at pictures.", "vision", attachments=("image/*",))
    url = "files/user/my%20cat.png"
    asked = await call(attaching(text="A cat"), spec, prompt="What is it?", file_urls=[url, url])
    passed = [{"type": "image/png", "title": "my cat.png", "url": url}]
    assert asked.peer.last.json["messages"][0]["custom_content"] == {"attachments": passed}


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("https://evil.example/files/b/a.png", "is not on this DIAL Core"),
        ("metadata/files/b/", "is not the URL of a DIAL file"),
        ("files/b/a.png?x=1", "a '?' or '#' part"),
        ("files/b/report.csv", "only image/* can"),
    ],
)
async def test_other_addresses_and_types_are_not_passed_along(url: str, sentence: str) -> None:
    spec = DeploymentSpec("see", "Looks at pictures.", "vision", attachments=("image/*",))
    asked = await call(attaching(text="A cat"), spec, prompt="What is it?", file_urls=[url])
    assert asked.message.failed
    assert sentence in asked.message.text()
    assert asked.peer.requests == []


async def test_files_of_the_answer_go_to_the_person_as_they_are_and_the_model_learns_their_addresses() -> None:
    citation = {"title": "[1] a.pdf", "type": "text/markdown", "data": "quoted", "reference_url": "files/b/a.pdf"}
    asked = await call(attaching(PICTURE, citation, text="Two things"), TRANSLATOR)
    assert [item.as_dict() for item in asked.choice.attachments] == [PICTURE]  # an answer that cites carries the other
    assert asked.message.custom_content is not None
    assert [item.as_dict() for item in asked.message.custom_content.attachments] == [PICTURE, citation]
    assert asked.message.text() == f"Two things\n\nAttached files:\n- Image (image/png): {PICTURE['url']}"


@pytest.mark.parametrize(
    ("attachment", "content", "kind"),
    [
        ({"title": "Image", "type": "image/png", "data": BASE64}, PNG, "image/png"),
        ({"title": "Image", "url": f"data:image/png;base64,{BASE64}"}, PNG, "image/png"),
        ({"title": "a/b", "type": "application/vnd.plotly.v1+json", "data": '{"data":[]}'}, b'{"data":[]}', None),
        ({"title": "Long", "type": "text/markdown", "data": "word " * 9_000}, None, "text/markdown"),
    ],
)
async def test_content_becomes_a_file_of_the_caller(attachment: Any, content: bytes | None, kind: str | None) -> None:
    asked = await call(attaching(attachment, text="Made"), TRANSLATOR)
    [(url, (stored, stored_kind))] = asked.uploads.files.items()
    assert stored == content or content is None
    assert stored_kind == (kind or attachment["type"])
    [shown] = asked.choice.attachments
    assert (shown.url, shown.data) == (url, None)
    assert BASE64[:40] not in asked.message.text() + asked.stage


async def test_nothing_to_send_or_to_show_is_a_failure() -> None:
    asked = await call(attaching(), TRANSLATOR)
    assert asked.message.failed
    assert "answered with nothing" in asked.message.text()

    asked = await call(attaching(PICTURE), prompt="  ")
    assert asked.message.failed
    assert "prompt is empty" in asked.message.text()
    assert asked.peer.requests == []


async def test_a_picture_written_into_the_text_becomes_a_file() -> None:
    asked = await call(attaching(text=f"Look: ![cat](data:image/png;base64,{BASE64})"))
    [(url, stored)] = asked.uploads.files.items()
    assert stored == (PNG, "image/png")
    assert asked.message.text().startswith("Look: ![cat](attached)")
    assert [item.url for item in asked.choice.attachments] == [url]


async def test_a_picture_named_by_cores_full_address_is_shown_by_its_short_one() -> None:
    @asynccontextmanager
    async def running() -> AsyncGenerator[Peer]:
        async def answer(request: web.Request) -> web.StreamResponse:
            full = {**PICTURE, "url": f"http://{request.host}/v1/{PICTURE['url']}"}
            return await attaching(full)(request)

        async with peer(answer) as deployment:
            yield deployment

    choice = RecordingChoice()
    async with running() as deployment:
        tool = ImageGenerationTool(deployment.url)
        await Toolbox([tool]).call_all([call_of(tool.name, {"prompt": "A cat"})], choice, CALLER)
    assert [item.url for item in choice.attachments] == [PICTURE["url"]]


def refused(status: int, code: str, message: str) -> Handler:
    return answers(status, {"error": {"message": message, "code": code, "type": "invalid_request_error"}})


def broken_off() -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(chunk({"role": "assistant", "content": "I am pai"}))
        assert request.transport is not None
        request.transport.abort()
        return response

    return answer


LINK = {"title": "Image", "type": "image/png", "url": "https://pictures.example/cat.png?sig=secret"}
FAULTS: dict[str, tuple[Handler, str]] = {
    "refused": (
        refused(400, "content_policy_violation", "Rejected by our safety system."),
        "refused this by its content",
    ),
    "filtered": (attaching(finish="content_filter"), "refused this by its content rules"),
    "explained": (attaching(text="I cannot draw this person."), "made no picture"),
    "nothing": (attaching(), "made no picture"),
    "other-file": (attaching({"title": "a", "type": "application/pdf", "url": "files/b/a.pdf"}), "made no picture"),
    "link": (attaching(LINK), "link to another host"),
    "damaged": (attaching({"title": "Image", "type": "image/png", "data": "no base64!"}), "damaged file"),
    "large": (attaching({"title": "Image", "type": "image/png", "data": "A" * 4000}), "more than 1,000 bytes"),
    "size": (refused(400, "invalid_size", "The size must be 1024x1024."), "The size must be 1024x1024."),
    "gone": (answers(404, {"error": {"message": "no such model"}}), "There is no model dall-e-3"),
    "down": (answers(500, {"error": {"message": "internal: host 10.0.0.7"}}), "did not answer properly"),
    "broken-off": (broken_off(), "was lost. Try again"),
    "error-event": (streams(b'data: {"error": {"message": "boom", "code": "500"}}\n\n'), "did not answer properly"),
}


@pytest.mark.fault("image: the image deployment refuses", case="refused")
@pytest.mark.fault("image: the image deployment returns no image", case="nothing")
@pytest.mark.fault("image: the image deployment returns a link to another host", case="link")
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_picture_that_was_not_made_is_a_sentence_for_the_model_and_a_failed_stage(fault: str) -> None:
    handler, sentence = FAULTS[fault]
    asked = await call(handler, max_bytes=1000)
    text = asked.message.text()
    assert asked.message.failed
    assert sentence in text
    assert "10.0.0.7" not in text
    assert "secret" not in text
    assert (asked.choice.stages[0].status, asked.choice.attachments) == ("failed", [])


async def test_nothing_of_a_file_that_cannot_be_stored_reaches_the_model() -> None:
    choice = RecordingChoice()
    async with peer(attaching({"title": "Image", "type": "image/png", "data": BASE64})) as deployment:
        tool = ImageGenerationTool(deployment.url)  # the same peer answers the question for the bucket with a stream
        [message] = await Toolbox([tool]).call_all([call_of(tool.name, {"prompt": "A cat"})], choice, CALLER)
    assert isinstance(message, Message)
    assert message.failed
    assert BASE64[:40] not in json.dumps(message.as_dict())


TOOL = {"name": "translate", "description": "Translates.", "deployment": "translator", "prompt": "text"}


def names(environ: dict[str, str], folder: Path) -> list[str]:
    return [tool.name for tool in default_tools(load_settings(environ=environ, directory=folder))]


def test_without_settings_there_is_the_image_tool_and_no_other_deployment(tmp_path: Path) -> None:
    assert "image_generation_tool" in names({}, tmp_path)
    assert "image_generation_tool" not in names({"AGENT_DEPLOYMENTS__IMAGE": "off"}, tmp_path)


def test_a_tool_is_described_in_yaml(tmp_path: Path) -> None:
    (tmp_path / "dial-agent.yaml").write_text(
        "deployments:\n  tools:\n"
        "    - {name: translate, description: Translates., deployment: translator, prompt: text, seconds: 5,\n"
        "       arguments: {language: {type: string}}, attachments: ['text/*']}\n"
    )
    [tool] = [tool for tool in default_tools(load_settings(environ={}, directory=tmp_path)) if tool.name == "translate"]
    assert (tool.description, tool.spec.timeout) == ("Translates.", 5)
    assert list(tool.parameters["properties"]) == ["text", "language", "file_urls"]
    assert tool.parameters["required"] == ["text"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "no spaces"}, "pattern"),
        ({"deployment": ""}, "at least 1 character"),
        ({"colour": "red"}, r"tools\[0\].colour: unknown"),
        ({"arguments": {"text": {"type": "string"}}}, "another meaning"),
        ({"arguments": {"n": {"type": "strin"}}}, "not a JSON Schema"),
        ({"seconds": 0}, "greater than 0"),
    ],
)
def test_a_wrong_description_stops_the_start_with_one_line(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        names({"AGENT_DEPLOYMENTS__TOOLS": json.dumps([TOOL | change])}, tmp_path)
    assert "AGENT_DEPLOYMENTS__TOOLS" in str(caught.value)
    assert "\n" not in str(caught.value)
