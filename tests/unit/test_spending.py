"""Tokens of models that tools call count for the run."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from task.conversation.messages import user
from task.llm.base import Usage
from task.llm.scripted import Reply, ScriptedModel, says, wants
from task.loop import Limits, RunOutcome, ToolLoop
from task.tools.base import BaseTool
from task.tools.deployment.deployment_tool import DeploymentSpec, DeploymentTool
from task.tools.rag.document_cache import DocumentCache
from task.tools.rag.rag_tool import RagTool
from task.tools.toolbox import Toolbox
from tests.support.choices import CALLER, RecordingChoice
from tests.support.core_peers import DONE, chunk, peer, streams
from tests.support.documents import MemoryFiles
from tests.support.embedding import WordVectors
from tests.support.memory_search import DirectReaders

NOTES = "files/b/notes.txt"
ASKED = wants("rag_search_tool", request="What does the tray cost?", file_url=NOTES)


def rag_tool(*replies: Reply) -> RagTool:
    model = ScriptedModel(*replies)
    return RagTool(
        "http://core", "writer", DocumentCache.create(), files=MemoryFiles({NOTES: b"The tray costs 40 euros."}),
        readers=DirectReaders(), embedder=WordVectors(), model=lambda name, caller: model,
    )  # fmt: skip


async def run(model: ScriptedModel, tool: BaseTool, **limits: Any) -> RunOutcome:
    async with asyncio.timeout(10):
        return await ToolLoop(model, Toolbox([tool]), Limits(**limits)).run([user("?")], RecordingChoice(), CALLER)


async def test_tokens_of_the_model_that_answers_from_a_document_are_in_the_usage() -> None:
    tool = rag_tool(says("40 euros [1].", usage=Usage(100, 7)))
    model = ScriptedModel(says("", usage=Usage(10, 1)) & ASKED, says("40 euros.", usage=Usage(20, 2)))
    outcome = await run(model, tool)
    assert (outcome.usage, outcome.tool_usage) == (Usage(130, 10), {"writer": Usage(100, 7)})


async def test_they_count_for_the_limit_of_tokens() -> None:
    tool = rag_tool(says("40 euros [1].", usage=Usage(1000, 7)))
    outcome = await run(ScriptedModel(ASKED, says("Stopped.")), tool, run_tokens=500)
    assert outcome.limit == "the limit of 500 tokens"


async def test_tokens_that_a_deployment_reports_are_in_the_usage() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 30, "completion_tokens": 4}}
    parts = [chunk({"content": "Ja"}), chunk({}, "stop"), b"data: " + json.dumps(usage).encode() + b"\n\n", DONE]
    spec = DeploymentSpec("translate", "Translates.", "translator", prompt="text")
    model = ScriptedModel(wants("translate", text="Yes"), says("Ja.", usage=Usage(10, 1)))
    async with peer(streams(*parts)) as deployment:
        outcome = await run(model, DeploymentTool(deployment.url, spec))
    assert (outcome.usage, outcome.tool_usage) == (Usage(40, 5), {"translator": Usage(30, 4)})


@pytest.mark.parametrize(
    ("reported", "behind"),
    [
        ([("big", 20, 4)], {"big": Usage(20, 4), "translator": Usage(10, 0)}),
        ([("big", 10, 0), ("big", 20, 4)], {"big": Usage(30, 4)}),
        ([("big", 300, 40)], {"big": Usage(300, 40)}),
        ([("big", 30, None)], {"big": Usage(30, 0), "translator": Usage(0, 4)}),
        ([(7, 30, 4), ("big", "x", 4)], {"translator": Usage(30, 4)}),
        ("nothing", {"translator": Usage(30, 4)}),
    ],
)
async def test_usage_is_split_by_the_models_that_a_deployment_called(reported: Any, behind: dict[str, Usage]) -> None:
    names = ("model", "prompt_tokens", "completion_tokens")
    per_model = [dict(zip(names, row, strict=False)) if isinstance(row, tuple) else row for row in reported]
    usage = {"prompt_tokens": 30, "completion_tokens": 4}
    last = chunk({}, "stop", usage=usage, statistics={"usage_per_model": per_model})
    spec = DeploymentSpec("translate", "Translates.", "translator", prompt="text")
    model = ScriptedModel(wants("translate", text="Yes"), says("Ja.", usage=Usage(10, 1)))
    async with peer(streams(chunk({"content": "Ja"}), last, DONE)) as deployment:
        outcome = await run(model, DeploymentTool(deployment.url, spec))
    assert outcome.tool_usage == behind
    assert outcome.usage == sum(behind.values(), Usage(10, 1))
