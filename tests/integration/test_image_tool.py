"""Pictures for a person in DIAL Chat: made by a deployment behind Core, attached, and every way in which that fails."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

from task.llm.scripted import Reply, says, wants
from tests.support.core_peers import answers
from tests.support.image_deployment import NAME, PNG, REVISED, attaching, image_deployment, never
from tests.support.product import Product, product
from tests.support.upstream import Received

TOOL = "image_generation_tool"
PROMPT = "A smiling cat wearing sunglasses"
BASE64 = base64.b64encode(PNG).decode()


def told(p: Product) -> str:
    """What the model learns of the call."""
    return p.upstream.requests[1].messages[-1]["content"]


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
    assert f"/appdata/{NAME}/" in picture["url"]
    [stage] = answer.stages.values()
    assert stage.status == "completed"
    assert stage.content.startswith(f"## Request arguments:\n\n**Prompt**: {PROMPT}\n\n## Response:\n")
    assert f"**Revised Prompt**: {REVISED}" in stage.content
    assert [item["url"] for item in stage.attachments] == [picture["url"]]
    assert answer.content == "Here is your cat."
    assert "attached to the answer" in told(p)
    assert picture["url"] in told(p)


async def test_the_deployment_gets_the_prompt_the_wishes_and_the_callers_headers_with_a_key_of_its_own(
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


async def test_the_next_turn_knows_where_the_picture_is(tmp_path: Path) -> None:
    turns = [wants(TOOL, prompt=PROMPT), says("Here."), says("It is above.")]
    async with image_deployment() as images, product(*turns, tmp_path=tmp_path, models=images.models) as p:
        images.core = p.core.url
        first = await p.reader.ask("Draw a cat")
        await p.reader.ask("Where is it?")
    history = json.dumps(p.upstream.requests[2].messages)
    assert first.attachments[0]["url"] in history


async def test_a_picture_that_comes_as_content_is_stored_and_no_base64_reaches_model_or_state(tmp_path: Path) -> None:
    answer_of = attaching({"title": "Image", "type": "image/png", "data": BASE64})
    turns = [wants(TOOL, prompt=PROMPT), says("Here.")]
    async with image_deployment(answer_of) as images, product(*turns, tmp_path=tmp_path, models=images.models) as p:
        answer = await p.reader.ask("Draw a cat")
        [picture] = answer.attachments.values()
        status, content = await p.reader.get(picture["url"])
    assert (status, content) == (200, PNG)
    assert "/appdata/general-purpose-agent/" in picture["url"]
    assert "data" not in picture
    assert BASE64[:40] not in told(p) + json.dumps(answer.state) + answer.stages[0].content


async def test_a_picture_written_into_the_text_is_stored_too(tmp_path: Path) -> None:
    text = f"Look: ![cat](data:image/png;base64,{BASE64})"
    turns = [wants(TOOL, prompt=PROMPT), says("Here.")]
    async with (
        image_deployment(attaching(text=text)) as images,
        product(*turns, tmp_path=tmp_path, models=images.models) as p,
    ):
        answer = await p.reader.ask("Draw a cat")
        status, content = await p.reader.get(answer.attachments[0]["url"])
    assert (status, content) == (200, PNG)
    assert BASE64[:40] not in told(p)


async def test_a_refused_picture_is_explained_to_the_model_and_the_run_goes_on(tmp_path: Path) -> None:
    error = {"message": "Rejected by our safety system.", "code": "content_policy_violation"}
    turns = [wants(TOOL, prompt=PROMPT), says("There is no picture.")]
    async with (
        image_deployment(answers(400, {"error": error})) as images,
        product(*turns, tmp_path=tmp_path, models=images.models) as p,
    ):
        answer = await p.reader.ask("Draw a cat")
    assert told(p).startswith("Error: The deployment dall-e-3 refused this by its content rules.")
    assert (answer.status, answer.error, answer.content) == (200, None, "There is no picture.")
    assert (answer.stages[0].status, answer.attachments) == ("failed", {})


async def test_a_deployment_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    turns = [wants(TOOL, prompt=PROMPT), says("It took too long.")]
    limits: Any = {"image_seconds": 0.2}
    async with (
        image_deployment(never(asyncio.Event())) as images,
        product(*turns, tmp_path=tmp_path, models=images.models, deployments=limits) as p,
    ):
        answer = await p.reader.ask("Draw a cat")
        async with asyncio.timeout(1):
            await images.peer.cancelled.wait()
    assert "was stopped after 0.2 s without a result" in told(p)
    assert (answer.stages[0].status, answer.content) == ("failed", "It took too long.")


async def test_a_person_who_leaves_stops_the_deployment(tmp_path: Path) -> None:
    asked = asyncio.Event()
    async with (
        image_deployment(never(asked)) as images,
        product(wants(TOOL, prompt=PROMPT), tmp_path=tmp_path, models=images.models) as p,
    ):
        waiting = asyncio.create_task(p.reader.ask("Draw a cat"))
        async with asyncio.timeout(5):
            await asked.wait()
        waiting.cancel()
        async with asyncio.timeout(1):
            await images.peer.cancelled.wait()


async def test_without_an_image_deployment_the_model_is_told_that_there_is_none(tmp_path: Path) -> None:
    async with product(wants(TOOL, prompt=PROMPT), says("No."), tmp_path=tmp_path) as p:
        await p.reader.ask("Draw a cat")
    assert "There is no deployment dall-e-3 on this DIAL Core" in told(p)


async def test_the_tool_can_be_switched_off_and_another_deployment_taken(tmp_path: Path) -> None:
    def offered(received: Received) -> Reply:
        return says(str(TOOL in received.tools))

    off: Any = {"image": "off"}
    async with product(offered, tmp_path=tmp_path, deployments=off) as p:
        assert (await p.reader.ask("Can you draw?")).content == "False"


async def test_11_a_picture_can_show_what_an_earlier_turn_found(tmp_path: Path) -> None:
    def draws_what_is_known(received: Received) -> Reply:
        return wants(TOOL, prompt=f"Artistic view of: {received.messages[-3]['content']}")

    turns = [says("It rains in Paris, 12 degrees."), draws_what_is_known, says("There.")]
    async with image_deployment() as images, product(*turns, tmp_path=tmp_path, models=images.models) as p:
        images.core = p.core.url
        await p.reader.ask("What's the weather in Paris?")
        await p.reader.ask("Generate an image representing that weather")
        seen = images.peer.last.json
    assert "Paris" in seen["messages"][0]["content"]
