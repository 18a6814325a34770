"""An approval conversation has the same decision trace through every door.

A trace is what the person read in each turn, what the model was sent, and what the gate decided about each call; ids
and codes are taken out of it, nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from task.approvals.questions import without_question
from task.llm.scripted import says, wants
from task.store.store import open_store
from tests.support.api_client import NOTES, Client
from tests.support.codes import codes_shown
from tests.support.console import console, openai
from tests.support.http_api import Api, http_api, said
from tests.support.product import product
from tests.support.toy_person import door, text_of
from tests.support.upstream import Upstream, openai_upstream

Decision = tuple[str, str]  # the word, and the reason of a denial
SCRIPT = (
    says("I would. ") & wants("write_note", text="rain") & wants("write_note", text="snow"),
    says("One of them is noted."),
    wants("write_note", text="hail"),
    says("Noted."),
    says("Rain and hail."),
)
TURNS: tuple[str | tuple[Decision, ...], ...] = (
    "Note that it rains, and that it snows.",
    (("approve", ""), ("deny", "it does not snow")),
    "And that it hails.",
    (("approve", ""),),
    "What did you note?",
)
Say = Callable[[str], Awaitable[str]]
Trace = dict[str, Any]


def worded(decisions: tuple[Decision, ...], codes: tuple[str, ...]) -> str:
    pairs = zip(decisions, codes, strict=True)
    return ", ".join(f"{word} {code}{reason and f' because {reason}'}" for (word, reason), code in pairs)


async def talked(say: Say) -> list[str]:
    """The answers of a door at which decisions are words."""
    answers: list[str] = []
    for turn in TURNS:
        answers.append(await say(turn if isinstance(turn, str) else worded(turn, codes_shown(answers[-1]))))
    return answers


async def trace_of(answers: list[str], upstream: Upstream, store: Path) -> Trace:
    """What is left of the conversation when its agent has ended, and so stored everything."""
    opened = await open_store(f"sqlite:///{store}", chores=False)
    try:
        rows = reversed((await opened.traces.list(None)).items)
        traces = [await opened.traces.get(None, row.trace_id) for row in rows]
    finally:
        await opened.close()
    return {
        "answers": [without_question(answer).strip() for answer in answers],
        "questions": [re.sub(r"\b[a-z]\d[a-z]\d\b", "CODE", answer) for answer in answers if "May I do" in answer],
        "model": [messages_of(request.messages) for request in upstream.requests],
        "decisions": [(item.tool, item.verdict) for trace in traces for item in trace.decisions],
    }


def messages_of(messages: list[dict[str, Any]]) -> list[Any]:
    return [
        (
            item["role"],
            (item.get("content") or "").strip(),
            [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in item["tool_calls"]]
            if "tool_calls" in item
            else [],
        )
        for item in messages
        if item["role"] != "system"
    ]


async def through_dial(folder: Path) -> Trace:
    async with product(*SCRIPT, tmp_path=folder, tool_paths=[NOTES]) as running:

        async def say(text: str) -> str:
            answer = await running.reader.ask(text)
            assert answer.error is None, answer.error
            return answer.content

        answers = await talked(say)
    return await trace_of(answers, running.upstream, folder / "agent" / "store.db")


async def through_v1(folder: Path, *, stream: bool) -> Trace:
    async with http_api(*SCRIPT, tmp_path=folder, tool_paths=[NOTES]) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        client = Client(api, stream=stream, session_id=session_id)

        async def say(text: str) -> str:
            return (await client.send(said(text)))["content"]

        answers = await talked(say)
    return await trace_of(answers, api.upstream, folder / "agent" / "store.db")


async def through_chat(folder: Path) -> Trace:
    async with http_api(*SCRIPT, tmp_path=folder, tool_paths=[NOTES]) as api:
        session_id = (await api.post("/session/start")).json["session_id"]

        async def say(text: str) -> str:
            return (await api.post("/chat", {"messages": [said(text)], "session_id": session_id})).json["response"]

        answers = await talked(say)
    return await trace_of(answers, api.upstream, folder / "agent" / "store.db")


async def through_the_pages_routes(folder: Path) -> Trace:
    async with http_api(*SCRIPT, tmp_path=folder, tool_paths=[NOTES]) as api:
        run = (await api.post("/runs", {"messages": [said(str(TURNS[0]))]})).json
        answers = [await written(api, run)]
        for turn in TURNS[1:]:
            if isinstance(turn, str):
                body = {"messages": [said(turn)], "session_id": run["session_id"]}
                run = (await api.post("/runs", body)).json
            else:
                run = await decided(api, run, turn)
            answers.append(await written(api, run))
    return await trace_of(answers, api.upstream, folder / "agent" / "store.db")


async def written(api: Api, run: dict[str, Any]) -> str:
    return shown(await api.events(run["run_id"]))


async def decided(api: Api, run: dict[str, Any], decisions: tuple[Decision, ...]) -> dict[str, Any]:
    """The run that continues after a decision on each card."""
    reply: dict[str, Any] = {}
    cards = (await api.get(f"/approvals?run_id={run['run_id']}")).json["approvals"]
    for card, (word, reason) in zip(cards, decisions, strict=True):
        body = {"decision": word, "reason": reason}
        reply = (await api.post(f"/approvals/{card['approval_id']}", body)).json
    return reply["resumed"]


async def through_the_toy_door(folder: Path) -> Trace:
    async with openai_upstream(*SCRIPT) as upstream, door(folder, upstream.url) as (person, _):
        session: list[str] = []

        async def say(text: str) -> str:
            person.writes(text)
            events = await person.reads_until("finished")
            if not session:
                session.append(events[-1]["session_id"])
                person.writes(f"/session {session[0]}")
            return shown(events)

        answers = await talked(say)
    return await trace_of(answers, upstream, folder / "data" / "store.db")


def shown(events: list[dict[str, Any]]) -> str:
    asked = [event["text"] for event in events if event["type"] == "approval"]
    return "\n\n".join(filter(None, (text_of(events), *asked)))


async def through_the_console(folder: Path) -> Trace:
    async with openai_upstream(*SCRIPT) as upstream:
        async with console(folder, AGENT_TOOL_PATHS=NOTES, **openai(upstream.url)) as person:
            answers = [
                (await (person.say(turn) if isinstance(turn, str) else person.decide(*turn))).state.answer
                for turn in TURNS
            ]
            await person.type("/quit", until="Goodbye")
            assert await person.window.ended() == 0
        return await trace_of(answers, upstream, folder / "data" / "store.db")


DOORS: dict[str, Callable[[Path], Awaitable[Trace]]] = {
    "/v1": lambda folder: through_v1(folder, stream=False),
    "/v1 streaming": lambda folder: through_v1(folder, stream=True),
    "/chat": through_chat,
    "the page's routes": through_the_pages_routes,
    "the toy door": through_the_toy_door,
    "the console": through_the_console,
}


@pytest.mark.parametrize("name", list(DOORS))
async def test_an_approval_conversation_has_the_trace_of_the_dial_door(tmp_path: Path, name: str) -> None:
    for folder in ("dial", "other"):
        (tmp_path / folder).mkdir()
    expected = await through_dial(tmp_path / "dial")
    assert [item[1] for item in expected["decisions"]].count("allowed") == 2
    assert len(expected["questions"]) == 2
    found = await DOORS[name](tmp_path / "other")
    for part, value in expected.items():
        assert found[part] == value, f"{part} at {name}"
