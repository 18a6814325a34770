"""Tokens of a run: requests fit the model's window, and those of models that tools call count."""

import asyncio
import json
from typing import Any

import pytest

from task.conversation.messages import FunctionCall, Message, ToolCall, assistant, system, tool_message, user
from task.conversation.pruning import HEADER, message_tokens
from task.errors import ProviderError
from task.llm.base import Usage
from task.llm.failures import CONTEXT_LENGTH
from task.llm.scripted import Reply, ScriptedModel, says, wants
from task.llm.window import NOTE_TOKENS, SMALL, ContextWindow
from task.loop import Limits, RunOutcome, ToolLoop
from task.search.readings import Readings
from task.search.shelf import DocumentCache
from task.tools.base import BaseTool
from task.tools.deployment.deployment_tool import DeploymentSpec, DeploymentTool
from task.tools.rag.rag_tool import RagTool
from task.tools.toolbox import Toolbox
from tests.support.choices import CALLER, RecordingChoice
from tests.support.core_peers import DONE, chunk, peer, streams
from tests.support.documents import DirectReaders, MemoryFiles
from tests.support.embedding import WordVectors
from tests.support.tools import answering
from tests.support.upstream_rules import fault_of


def long_conversation(turns: int = 60) -> list[Message]:
    messages = [system("S")]
    for number in range(turns):
        call = ToolCall(f"c{number}", FunctionCall("look"))
        messages += [user(f"question {number}"), assistant(None, [call]), tool_message(call, "seen " * 200)]
        messages += [assistant(f"answer {number}")]
    return [*messages, user("now")]


def tokens(messages: list[Message]) -> int:
    return sum(map(message_tokens, messages))


def window(limit: int | None) -> ContextWindow:
    async def listed() -> int | None:
        return limit

    return ContextWindow(listed)


def too_long(text: str = "") -> Reply:
    return Reply((ProviderError("The conversation is too long.", status_code=400, code=CONTEXT_LENGTH, text=text),))


async def run(model: ScriptedModel, messages: list[Message], room: ContextWindow | None = None) -> RunOutcome:
    tools = Toolbox([answering("look", "seen " * 1000)])
    loop = ToolLoop(model, tools, window=room or ContextWindow())
    async with asyncio.timeout(20):
        return await loop.run(messages, RecordingChoice(), CALLER)


async def test_a_request_over_the_limit_is_pruned_and_the_conversation_stays_whole() -> None:
    messages, model = long_conversation(), ScriptedModel(says("Yes."))
    before = len(messages)
    await run(model, messages, window(5000))
    sent = model.requests[0]
    assert tokens(sent) <= 5000
    assert fault_of({"messages": [message.as_dict() for message in sent]}) is None
    assert [message.text() for message in (sent[0], sent[1], sent[-1])] == ["S", "question 0", "now"]
    assert sent[2].text().startswith(HEADER)
    assert len(messages) == before + 1


async def test_a_short_conversation_needs_no_limit() -> None:
    async def nobody() -> int | None:
        raise AssertionError("asked")

    messages = [system("S"), user("x" * SMALL)]
    assert await ContextWindow(nobody).fitted(messages, []) is messages


async def test_without_a_known_limit_nothing_is_pruned() -> None:
    messages, model = long_conversation(), ScriptedModel(says("Yes."))
    await run(model, messages, window(None))
    assert model.requests[0] == messages[:-1]


@pytest.mark.parametrize("room", [window(12_000), ContextWindow(messages=20)], ids=["tokens", "messages"])
async def test_a_shortened_request_is_valid_and_later_steps_add_to_the_same_beginning(room: ContextWindow) -> None:
    messages, model = long_conversation(), ScriptedModel(wants("look"), wants("look", n=2), says("Yes."))
    await run(model, messages, room)
    first, second, third = model.requests
    assert len(third) < len(messages)
    assert room.messages is None or len(third) <= room.messages
    assert (second[: len(first)], third[: len(second)]) == (first, second)
    assert [message.text() for message in (first[0], first[1], first[-1])] == ["S", "question 0", "now"]
    assert first[2].text().startswith(HEADER)
    assert all(fault_of({"messages": [message.as_dict() for message in sent]}) is None for sent in model.requests)


@pytest.mark.parametrize(
    ("text", "at_most"),
    [
        ("This model's maximum context length is 8,192 tokens. However, your messages resulted in 16,384 tokens.", 0.5),
        ("prompt is too long: 210000 tokens > 21000 maximum", 0.1),
        ("exceeds the context window", 0.5),
    ],
)
async def test_a_refusal_as_too_long_is_answered_with_a_shorter_request(text: str, at_most: float) -> None:
    messages, model = long_conversation(), ScriptedModel(too_long(text), wants("look"), says("Yes."))
    outcome = await run(model, messages)
    refused, again, later = map(tokens, model.requests)
    assert outcome.status == "finished"
    assert again <= at_most * refused + NOTE_TOKENS
    assert later <= at_most * refused + NOTE_TOKENS, "what the provider reported holds for the rest of the run"


@pytest.mark.fault("history: a conversation longer than the model takes")
async def test_a_second_refusal_is_a_failure() -> None:
    outcome = await run(ScriptedModel(too_long(), too_long()), long_conversation())
    assert outcome.status == "failed"
    assert isinstance(outcome.error, ProviderError)
    assert outcome.error.code == CONTEXT_LENGTH


@pytest.mark.fault("history: a question that alone is too long")
async def test_a_conversation_that_cannot_be_shortened_is_not_sent_again() -> None:
    model = ScriptedModel(too_long())
    outcome = await run(model, [system("S"), user("word " * 10_000)])
    assert (outcome.status, len(model.requests)) == ("failed", 1)


async def test_other_failures_and_answers_that_have_started_are_not_retried() -> None:
    for reply in (Reply((ProviderError("no", status_code=400),)), says("Half an") & too_long()):
        model = ScriptedModel(reply)
        assert (await run(model, long_conversation())).status == "failed"
        assert len(model.requests) == 1


NOTES = "files/b/notes.txt"
ASKED = wants("rag_search_tool", request="What does the tray cost?", file_url=NOTES)


def rag_tool(*replies: Reply) -> RagTool:
    model = ScriptedModel(*replies)
    return RagTool(
        "http://core", "writer", DocumentCache.create(),
        readings=Readings(MemoryFiles({NOTES: b"The tray costs 40 euros."}), DirectReaders()), embedder=WordVectors(),
        model=lambda name, caller: model,
    )  # fmt: skip


async def run_with(model: ScriptedModel, tool: BaseTool, **limits: Any) -> RunOutcome:
    async with asyncio.timeout(20):
        return await ToolLoop(model, Toolbox([tool]), Limits(**limits)).run([user("?")], RecordingChoice(), CALLER)


async def test_tokens_of_the_model_that_answers_from_a_document_are_in_the_usage() -> None:
    tool = rag_tool(says("40 euros [1].", usage=Usage(100, 7)))
    model = ScriptedModel(says("", usage=Usage(10, 1)) & ASKED, says("40 euros.", usage=Usage(20, 2)))
    outcome = await run_with(model, tool)
    assert (outcome.usage, outcome.tool_usage) == (Usage(130, 10), {"writer": Usage(100, 7)})


async def test_tokens_that_a_deployment_reports_are_in_the_usage() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 4}}
    parts = [chunk({"content": "Ja"}), chunk({}, "stop"), b"data: " + json.dumps(usage).encode() + b"\n\n", DONE]
    spec = DeploymentSpec("translate", "Translates.", "translator", prompt="text")
    model = ScriptedModel(wants("translate", text="Yes"), says("Ja.", usage=Usage(10, 1)))
    async with peer(streams(*parts)) as deployment:
        outcome = await run_with(model, DeploymentTool(deployment.url, spec))
    assert (outcome.usage, outcome.tool_usage) == (Usage(40, 5), {"translator": Usage(30, 4)})
