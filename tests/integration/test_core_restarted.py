"""DIAL Core is restarted while the agent runs: the agent needs no restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from task.llm.scripted import says
from tests.support.agent import running_agent
from tests.support.chat_reader import chat_reader
from tests.support.core import RunningCore, local_core
from tests.support.ports import free_port
from tests.support.product import core_config, settings_of
from tests.support.upstream import openai_upstream


@pytest.mark.fault("compose: Core restarted under the agent")
async def test_an_agent_answers_through_a_core_that_was_away_and_one_that_was_restarted(tmp_path: Path) -> None:
    port, core_port = free_port(), free_port()
    async with openai_upstream(then=says("Here.")) as upstream:
        config = core_config(port, upstream.endpoint)
        async with local_core(config, tmp_path, port=core_port) as known:
            settings = settings_of(known, upstream, tmp_path, {})
        async with running_agent(settings, port=port):
            for question in ("Before?", "After?"):
                async with local_core(config, tmp_path, port=core_port) as core:
                    assert await answer(core, question) == "Here."


async def answer(core: RunningCore, question: str) -> str:
    async with chat_reader(core.url, "key-one") as reader:
        return (await reader.ask(question)).content
