"""Which run a request becomes: each row of the table, at the HTTP door."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from task.runs.table import TABLE
from tests.support.api_client import LOOKUP, Client, agent, results, waiting
from tests.support.http_api import Api, said
from tests.support.replies import Reply
from tests.support.upstream import broken_off, http_error

MILK, BREAD, DONE = wants("write_note", text="milk"), wants("write_note", text="bread"), says("Done.")
CALLS = wants("lookup", name="Ann")


@dataclass
class Scene:
    """A caller in one session. `earlier` is the run that a repeat has to lead to."""

    api: Api
    session_id: str
    database: Path
    earlier: str | None = None
    codes: list[str] = field(default_factory=list[str])

    async def asked(self) -> None:
        """The model wants to write, and the user is asked."""
        await self.says("note it")
        self.codes = [item["code"] for item in await waiting(self.api)]

    async def says(self, text: str) -> Reply:
        reply = await self.api.complete(text, session_id=self.session_id)
        self.earlier = reply.json.get("run_id")
        return reply

    async def answers(self, word: str = "approve") -> Reply:
        """Answer by the code of the first question."""
        return await self.says(f"{word} {self.codes[0]}")

    async def clicks(self, decision: str = "approve", reason: str = "", number: int = 0) -> Reply:
        """Answer on a card; its run is followed to its end."""
        everything = (await self.api.get("/approvals?waiting=false")).json["approvals"]
        path = f"/approvals/{everything[number]['approval_id']}"
        reply = await self.api.post(path, {"decision": decision, "reason": reason})
        if reply.status == 200 and reply.json["resumed"]:
            self.earlier = reply.json["resumed"]["run_id"]
            await self.api.events(reply.json["resumed"]["run_id"])
        return reply

    def at_the_console(self) -> None:
        """The question belongs to a console, whose tools are not here."""
        with sqlite3.connect(self.database) as database:
            database.execute("""UPDATE events SET data = replace(data, '"door":"v1"', '"door":"console"')""")
        database.close()

    async def gives_results(self, client: Client) -> Reply:
        """Send the result of the call that was handed out."""
        [call] = client.history[1]["tool_calls"]
        return await client.post({"role": "tool", "tool_call_id": call["id"], "content": "Ann is 42"})

    async def has_calls(self) -> Client:
        client = Client(self.api, session_id=self.session_id)
        await client.send(said("look it up"))
        return client


async def unknown_code(s: Scene) -> Reply:
    s.codes = ["k7f3"]
    return await s.says("approve k7f3")


async def codes_of_two(s: Scene) -> Reply:
    await s.asked()
    await s.api.complete("note it")
    codes = [item["code"] for item in await waiting(s.api)]
    return await s.says(f"approve {codes[0]} and {codes[1]}")


async def unseen(s: Scene) -> Reply:
    await s.asked()
    messages = [said("Hi"), said("Hello.", "assistant"), said(f"approve {s.codes[0]}")]
    return await s.api.post("/v1/chat/completions", {"messages": messages})


async def bare_word(s: Scene) -> Reply:
    return await s.says("approve")


async def bare_word_for_two(s: Scene) -> Reply:
    await s.asked()
    return await s.says("approve")


async def expired(s: Scene) -> Reply:
    reply = await s.says("note it")
    s.codes = [reply.json["choices"][0]["message"]["content"].partition("**approve ")[2][:4]]
    async with asyncio.timeout(20):
        while await waiting(s.api):
            await asyncio.sleep(0)
    return await s.answers()


async def answered_otherwise(s: Scene) -> Reply:
    await s.asked()
    await s.answers("deny")
    return await s.answers()


async def answered(s: Scene) -> Reply:
    await s.asked()
    return await s.answers()


async def answered_elsewhere(s: Scene) -> Reply:
    await s.asked()
    s.at_the_console()
    return await s.answers()


async def answered_after_a_message(s: Scene) -> Reply:
    await s.asked()
    await s.says("What is new?")
    return await s.answers("deny")


async def answered_twice(s: Scene) -> Reply:
    await s.asked()
    first = await s.answers()
    reply = await s.answers()
    s.earlier = first.json.get("run_id")
    return reply


async def clicked_on_one_of_two(s: Scene) -> Reply:
    await s.asked()
    return await s.clicks()


async def clicked(s: Scene) -> Reply:
    await s.asked()
    return await s.clicks()


async def clicked_elsewhere(s: Scene) -> Reply:
    await s.asked()
    s.at_the_console()
    return await s.clicks()


async def clicked_after_a_message(s: Scene) -> Reply:
    await s.asked()
    await s.says("What is new?")
    return await s.clicks("deny", "another message came")


async def clicked_twice(s: Scene) -> Reply:
    await s.asked()
    await s.clicks()
    return await s.clicks()


async def results_of_others(s: Scene) -> Reply:
    call = {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
    body = {"messages": [said("?"), calling, result], "tools": [LOOKUP]}
    return await s.api.post("/v1/chat/completions", body)


async def results_once(s: Scene) -> Reply:
    return await s.gives_results(await s.has_calls())


async def results_twice(s: Scene) -> Reply:
    client = await s.has_calls()
    s.earlier = (await s.gives_results(client)).json.get("run_id")
    return await s.gives_results(client)


async def talk(s: Scene) -> Reply:
    return await s.says("Hi")


async def talk_instead_of_an_answer(s: Scene) -> Reply:
    await s.asked()
    return await s.says("What is new?")


Play = Callable[[Scene], Awaitable[Reply]]
SCENES: Mapping[tuple[str, str], tuple[Play, tuple[Any, ...]]] = {
    ("code", "an unknown code"): (unknown_code, ()),
    ("code", "several questions"): (codes_of_two, (MILK, MILK)),
    ("code", "a question that the client has not seen"): (unseen, (MILK,)),
    ("word", "no question"): (bare_word, (DONE,)),
    ("word", "several questions"): (bare_word_for_two, (MILK & BREAD,)),
    ("answer", "an expired question"): (expired, (MILK,)),
    ("answer", "a question answered otherwise"): (answered_otherwise, (MILK, DONE)),
    ("answer", "a question"): (answered, (MILK, DONE)),
    ("answer", "a question of another door"): (answered_elsewhere, (MILK,)),
    ("answer", "a question followed by a message"): (answered_after_a_message, (MILK, DONE)),
    ("answer", "an answered question"): (answered_twice, (MILK, DONE)),
    ("answer", "an answered question, its run failed at once"): (answered_twice, (MILK, http_error(400), DONE)),
    ("answer", "an answered question, its run broke off"): (
        answered_twice,
        (MILK, broken_off(says("Half ", "a ", "sentence"), chunks=2)),
    ),
    ("card", "other questions of the run"): (clicked_on_one_of_two, (MILK & BREAD,)),
    ("card", "a question"): (clicked, (MILK, DONE)),
    ("card", "a question of another door"): (clicked_elsewhere, (MILK,)),
    ("card", "a question followed by a message"): (clicked_after_a_message, (MILK, DONE)),
    ("card", "an answered question"): (clicked_twice, (MILK, DONE)),
    ("results", "no run of ours"): (results_of_others, (DONE,)),
    ("results", "their calls"): (results_once, (CALLS, DONE)),
    ("results", "results that came before"): (results_twice, (CALLS, DONE)),
    ("results", "results that came before, their run failed"): (results_twice, (CALLS, http_error(400), DONE)),
    ("message", "nothing"): (talk, (DONE,)),
    ("message", "calls or questions"): (talk_instead_of_an_answer, (MILK, DONE)),
}


@pytest.mark.fault("http api: an expired code, at the HTTP door")
@pytest.mark.fault("http api: a code after another message, at the HTTP door")
@pytest.mark.fault("http api: a word with two questions open, at the HTTP door")
@pytest.mark.fault("http api: another answer to a question that was answered")
@pytest.mark.fault("http api: an approval by a word that a client sends again")
@pytest.mark.parametrize("row", TABLE, ids=" ~ ".join)
async def test_what_came_and_what_is_open_make_this_run(row: tuple[str, str], tmp_path: Path) -> None:
    (play, script), outcome = SCENES[row], TABLE[row]
    minutes = 0.0001 if row == ("answer", "an expired question") else 60
    async with agent(*script, tmp_path=tmp_path, permissions={"open_minutes": minutes}) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        scene = Scene(api, session_id, tmp_path / "agent" / "store.db")
        reply = await play(scene)
        written = results(api) if api.upstream.requests else []
        runs = {run["run_id"] for run in (await api.get("/runs")).json["runs"]}
        asked = [item["status"] for item in (await api.get("/approvals?waiting=false")).json["approvals"]]
    body = reply.json if reply.status == 200 else {}
    run_id = (body.get("resumed") or {}).get("run_id") if row[0] == "card" else body.get("run_id")
    match outcome:
        case "new":
            assert run_id in runs
            assert not any(result.startswith("noted") for result in written)
            assert "waiting" not in asked
        case "resumed":
            assert written == ["noted: milk"]
            assert len(runs) == 2
        case "repeated":
            assert run_id == scene.earlier
            assert len(runs) == 2
        case "retried":
            assert run_id not in (None, scene.earlier)
            assert len(runs) == 3
            assert len(written) == 1  # the call did not run a second time
        case "wait":
            assert (reply.status, run_id, len(runs)) == (200, None, 1)
        case refusal:
            assert reply.status == (404 if row == ("code", "an unknown code") else 409)
            assert reply.error["message"].startswith(refusal.format(code=(scene.codes or [""])[0]))
            assert not any(result.startswith("noted") for result in written[1:])


def test_every_row_has_its_scene() -> None:
    assert list(SCENES) == list(TABLE)
