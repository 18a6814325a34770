"""An approval of something else, or an earlier one, decides nothing that waits."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from tests.support.api_client import Client, agent, results, waiting
from tests.support.http_api import Api, said

ASKS = says("I would. ") & wants("write_note", text="milk")


@asynccontextmanager
async def client(*script: Any, tmp_path: Path) -> AsyncGenerator[tuple[Api, Client]]:
    """A client that sends its whole history in a session."""
    async with agent(*script, tmp_path=tmp_path) as api:
        yield api, Client(api, session_id=(await api.post("/session/start")).json["session_id"], whole=True)


async def ran(api: Api) -> list[str]:
    """All results of the agent's own tools that any model received."""
    return [result for request in range(len(api.upstream.requests)) for result in results(api, request)]


@pytest.mark.fault("http api: a yes after another history than the one that ends with the question")
@pytest.mark.parametrize(
    "history",
    [
        [said("hello"), said("Shall I tell you more?", "assistant")],
        [said("hello"), said("Shall I tell you more?", "assistant"), said("note it")],
        [said("hello"), said("Shall I tell you more?", "assistant"), said("note it"), said("Sugar?", "assistant")],
    ],
)
async def test_a_yes_after_another_history_is_talk_on_a_branch_and_the_question_stays(
    tmp_path: Path, history: list[dict[str, Any]]
) -> None:
    script = (says("Shall I tell you more?"), ASKS, says("More."), says("Done."))
    async with client(*script, tmp_path=tmp_path) as (api, person):
        await person.send(said("hello"))
        await person.send(said("note it"))
        asked, person.history = person.history, history
        other = await person.send(said("yes"))
        open_ones, early = len(await waiting(api)), await ran(api)
        person.history = asked
        done = await person.send(said("approve"))
        known = results(api)
    assert (other["content"], open_ones, early) == ("More.", 1, [])
    assert (done["content"], known) == ("Done.", ["noted: milk"])


@pytest.mark.fault("http api: a yes after another history than the one that ends with the question")
async def test_an_earlier_approval_sent_again_does_not_answer_the_same_question_asked_again(tmp_path: Path) -> None:
    async with client(ASKS, says("Done."), ASKS, says("Twice."), tmp_path=tmp_path) as (api, person):
        await person.send(said("note it"))
        await person.decide("approve")
        await person.send(said("and once more"))
        asked, person.history = person.history, person.history[:3]
        again = await person.again()
        open_ones, early = len(await waiting(api)), await ran(api)
        person.history = asked
        done = await person.send(said("approve"))
    assert (again["content"], open_ones, early) == ("Done.", 1, ["noted: milk"] * 2)
    assert done["content"] == "Twice."


async def test_a_client_that_shows_the_question_as_a_card_sends_the_answer_without_it(tmp_path: Path) -> None:
    async with client(ASKS, says("Done."), tmp_path=tmp_path) as (api, person):
        await person.send(said("note it"))
        person.history[-1] = said("I would.", "assistant")
        done = await person.send(said("approve"))
        known = results(api)
    assert (done["content"], known) == ("Done.", ["noted: milk"])


@pytest.mark.fault("http api: a yes after another history than the one that ends with the question")
async def test_a_word_decides_on_the_branch_that_the_history_has_become(tmp_path: Path) -> None:
    hello = says("Hello.")
    async with client(hello, ASKS, ASKS, says("Done."), says("The first."), tmp_path=tmp_path) as (api, person):
        await person.send(said("hello"))
        await person.send(said("note it"))
        first, person.history = person.history, [said("hallo"), said("Hello.", "assistant")]
        await person.send(said("note it"))
        sessions = [item["session_id"] for item in await waiting(api)]
        done = await person.send(said("approve"))
        open_ones = [item["session_id"] for item in await waiting(api)]
        person.history = first
        other = await person.send(said("approve"))
    assert len(set(sessions)) == 2
    assert (done["content"], open_ones) == ("Done.", [person.session_id])
    assert other["content"] == "The first."
