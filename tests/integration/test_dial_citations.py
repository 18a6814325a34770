"""Citations through DIAL Core: what chats show, what models and programs get, and what comes back in the next turn."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from task.llm.scripted import says, wants
from tests.support.core_peers import DONE, chunk, peer, streams
from tests.support.product import Product, product

PAGE = "https://known.example/report"
SOURCE = {"type": "attachment", "attachment": {"type": "text/html", "url": PAGE, "title": "Report"}}
ANNOTATION = {
    "index": 0,
    "body": {"title": "Report", "quote": "Sales rose.", "source": SOURCE},
    "target": {"selector": {"type": "html_tag", "tag": "cit", "id": "x7"}},
}
TURN = (wants("look", prompt="Sales?"), says("They ", "rose [", "1", "].\n\n`a[1]`"))
TAGGED = 'They rose [1]<cit id="c1" data-id="c1"></cit>.\n\n`a[1]`'


@asynccontextmanager
async def citing(*replies: Any, folder: Path, **settings: Any) -> AsyncGenerator[Product]:
    """The agent with a deployment as its tool, whose answer cites a page as Chat 1.x shows it."""
    parts = (
        chunk({"content": 'They rose <cit data-id="x7"></cit>.'}),
        chunk({"custom_fields": {"annotations": [ANNOTATION]}}),
    )
    look = {"name": "look", "description": "Looks.", "deployment": "seer"}
    async with peer(streams(*parts, chunk({}, "stop"), DONE)) as seer:
        models = {"seer": {"type": "chat", "endpoint": f"{seer.url}/chat/completions"}}
        tools = {"tools": [look]}
        async with product(*replies, tmp_path=folder, models=models, deployments=tools, **settings) as p:
            yield p


@pytest.mark.parametrize("stream", [True, False])
async def test_a_callees_citation_is_one_of_the_answer_in_both_chats(stream: bool, tmp_path: Path) -> None:
    async with citing(*TURN, folder=tmp_path) as p:
        answer = await p.reader.ask("How were the sales?", stream=stream)
        result = p.upstream.requests[1].last["content"]
    assert answer.content == TAGGED
    assert [answer.pills(attribute) for attribute in ("id", "data-id")] == [[ANNOTATION["body"]]] * 2
    assert [(item["title"], item["reference_url"]) for item in answer.attachments.values()] == [("[1] Report", PAGE)]
    assert "They rose [1]." in result, "the model reads the number, not the callee's tag"


async def test_what_comes_back_from_the_chat_reaches_the_model_without_tags(tmp_path: Path) -> None:
    replies = (*TURN, says("As said [1]."), says("Yes."))
    async with citing(*replies, folder=tmp_path) as p:
        await p.reader.ask("How were the sales?")
        again = await p.reader.ask("Sure?")
        await p.reader.ask("Really?")
        asked = p.upstream.requests[-1].messages
    assert again.content == 'As said [1]<cit id="c1" data-id="c1"></cit>.', "a source keeps its number"
    assert "<cit" not in str(asked)
    assert [item["content"] for item in asked if item["role"] == "assistant" and "tool_calls" not in item] == [
        "They rose [1].\n\n`a[1]`", "As said [1].",
    ]  # fmt: skip


async def test_the_setting_leaves_the_attachments_alone(tmp_path: Path) -> None:
    async with citing(*TURN, folder=tmp_path, annotations=False) as p:
        answer = await p.reader.ask("How were the sales?")
    assert (answer.content, answer.annotations) == ("They rose [1].\n\n`a[1]`", {})
    assert [item["title"] for item in answer.attachments.values()] == ["[1] Report"]


async def test_an_answer_that_is_to_be_json_has_no_tags(tmp_path: Path) -> None:
    async with citing(TURN[0], says('{"sales": "rose [1]"}'), folder=tmp_path) as p:
        form = {"type": "json_object"}
        body = {"messages": [{"role": "user", "content": "Sales?"}], "response_format": form}
        path = f"{p.core.url}/openai/deployments/general-purpose-agent/chat/completions"
        async with aiohttp.ClientSession() as http, http.post(path, json=body, headers={"Api-Key": "key-one"}) as reply:
            [choice] = (await reply.json())["choices"]
    assert choice["message"]["content"] == '{"sales": "rose [1]"}'
