"""The scenarios about long documents, over two agents behind one Core: as processes, and with what they share."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent import agent_process
from tests.support.chat_reader import Answer, ChatReader, chat_reader
from tests.support.core import RunningCore, local_core
from tests.support.document_turns import (
    DEFROST,
    INVENTED_TABLE,
    PLATE,
    POPCORN,
    TABLE,
    reads_the_excerpts,
    repeats_the_tool,
    searches,
)
from tests.support.documents import manual
from tests.support.ports import free_port
from tests.support.product import MODEL, declared_types
from tests.support.redis_server import redis_server
from tests.support.upstream import Upstream, openai_upstream

pytestmark = pytest.mark.timeout(180)  # the embedding process is waited for on a cold, busy disk

CACHED = "Using cached index"
ASKED = (PLATE, DEFROST, POPCORN, TABLE)  # by turns of the one agent and the other
GENERATED = (reads_the_excerpts, "Press AUTO DEFROST and choose meat [1].", reads_the_excerpts, INVENTED_TABLE)


@dataclass(frozen=True, slots=True)
class Agents:
    """One person's conversation, read from either of two agents."""

    core: RunningCore
    ports: tuple[int, int]
    readers: tuple[ChatReader, ChatReader]

    async def conversation(self) -> list[Answer]:
        """The answers to all questions; each agent sees the whole conversation."""
        one, other = self.readers
        other.messages = one.messages
        file = await one.upload("manual.txt", manual().encode(), "text/plain")
        turns = enumerate(ASKED)
        return [await self.readers[turn % 2].ask(text, *([] if turn else [file])) for turn, text in turns]


@asynccontextmanager
async def two_agents(tmp_path: Path) -> AsyncGenerator[Agents]:
    """Core with two applications for two agents that are still to be started, and the model behind it."""
    ports = free_port(), free_port()
    turns = [turn for asked, said in zip(ASKED, GENERATED, strict=True) for turn in _turns(asked, said)]
    async with (
        openai_upstream(*turns) as upstream,
        local_core(_config(upstream, ports), tmp_path) as core,
        chat_reader(core.url, "key-one", "agent-0") as one,
        chat_reader(core.url, "key-one", "agent-1") as other,
    ):
        yield Agents(core, ports, (one, other))


def _turns(asked: str, said: Any) -> tuple[Any, ...]:
    from task.llm.scripted import says

    return searches(asked), says(said) if isinstance(said, str) else said, repeats_the_tool


def _config(upstream: Upstream, ports: tuple[int, int]) -> dict[str, Any]:
    route = "openai/deployments/general-purpose-agent/chat/completions"
    model = {"type": "chat", "endpoint": f"{upstream.endpoint}/openai/deployments/{MODEL}/chat/completions"}
    return {
        "models": {MODEL: model},
        "applications": {
            f"agent-{number}": {
                "endpoint": f"http://127.0.0.1:{port}/{route}",
                "displayName": f"Agent {number}",
                "inputAttachmentTypes": declared_types(),
            }
            for number, port in enumerate(ports)
        },
        "keys": {"key-one": {"project": "ONE", "role": "default"}},
        "roles": {"default": {"limits": {}}},
    }


def shared(core: RunningCore, embedding_dir: Path, store_url: str | None) -> dict[str, str]:
    """The variables that replicas have in common."""
    store = {"AGENT_REDIS_URL": store_url} if store_url else {}
    return {
        "DIAL_ENDPOINT": core.url, "DEPLOYMENT_NAME": MODEL, "AGENT_STATE_SECRET": "replicas agree on it",
        "AGENT_RAG__PROCESS_DIR": str(embedding_dir), **store,
    }  # fmt: skip


def assert_scenarios(answers: list[Answer]) -> None:
    plate, defrost, popcorn, table = answers
    assert "warm soapy water" in plate.content
    assert re.search(r"\*\*manual\.txt\*\*: \d+ chunks", plate.stages[0].content)
    assert "Press AUTO DEFROST" in defrost.content
    assert popcorn.content.startswith("Not in the document")
    rows = table.content.splitlines()
    assert re.fullmatch(r"\| auto defrost: choose meat \| meat, poultry or fish \[\d\] \|", rows[2])
    assert rows[3] == "| grill | 230 °C (not supported by the document) |"
    assert all(answer.stages[0].status == "completed" for answer in answers)


def used_the_cache(answers: list[Answer]) -> list[bool]:
    return [CACHED in answer.stages[0].content for answer in answers]


@pytest.mark.system
@pytest.mark.parametrize(
    ("with_store", "cached"), [(True, [False, True, True, True]), (False, [False, False, True, True])]
)
async def test_two_agent_processes_answer_one_conversation(
    with_store: bool, cached: list[bool], tmp_path: Path, embedding_dir: Path
) -> None:
    async with redis_server() as redis, two_agents(tmp_path) as agents, AsyncExitStack() as stack:
        variables = shared(agents.core, embedding_dir, redis.url if with_store else None)
        pids = {
            (await stack.enter_async_context(agent_process(tmp_path / f"home-{number}", port, variables))).pid
            for number, port in enumerate(agents.ports)
        }
        answers = await agents.conversation()
    assert len(pids) == 2
    assert_scenarios(answers)
    assert used_the_cache(answers) == cached
