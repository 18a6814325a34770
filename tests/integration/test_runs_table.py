"""Which run a request becomes: each row of the table, at the HTTP door."""

import asyncio
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says, wants
from task.runs.table import TABLE
from tests.support.api_client import LOOKUP, Client, agent, results, waiting
from tests.support.http_api import Api, said
from tests.support.replies import Reply
from tests.support.upstream import http_error

MILK, BREAD, DONE = wants("write_note", text="milk"), wants("write_note", text="bread"), says("Done.")
CALLS = wants("lookup", name="Ann")


@dataclass
class Scene:
    """A caller in one session, who takes the steps of a row. `earlier` is the run of the first answer or results, to
    which a repeat has to lead."""

    api: Api
    session_id: str
    database: Path
    earlier: str | None = None
    codes: list[str] = field(default_factory=list[str])
    client: Client | None = None

    async def ask(self) -> Reply:
        """The model wants to write, and the user is asked."""
        reply = await self.say("note it")
        self.codes = [item["code"] for item in await waiting(self.api)]
        return reply

    async def ask_and_wait(self) -> Reply:
        reply = await self.say("note it")
        self.codes = [reply.json["choices"][0]["message"]["content"].partition("**approve ")[2][:4]]
        async with asyncio.timeout(20):
            while await waiting(self.api):
                await asyncio.sleep(0)
        return reply

    async def ask_elsewhere(self) -> Reply:
        """The question belongs to a console, whose tools are not here."""
        reply = await self.ask()
        with sqlite3.connect(self.database) as database:
            database.execute("""UPDATE events SET data = replace(data, '"door":"v1"', '"door":"console"')""")
        database.close()
        return reply

    async def ask_in_two_places(self) -> Reply:
        await self.ask()
        reply = await self.api.complete("note it")
        self.codes = [item["code"] for item in await waiting(self.api)]
        return reply

    async def say(self, text: str = "What is new?") -> Reply:
        return await self.api.complete(text, session_id=self.session_id)

    async def word(self) -> Reply:
        return await self.say("approve")

    async def approve(self, word: str = "approve") -> Reply:
        """Answer by the codes."""
        return self.led_to(await self.say(f"{word} {' and '.join(self.codes)}"))

    async def deny(self) -> Reply:
        return await self.approve("deny")

    async def guess(self) -> Reply:
        self.codes = ["k7f3"]
        return await self.approve()

    async def click(self, decision: str = "approve") -> Reply:
        """Answer on the first card; its run is followed to its end."""
        everything = (await self.api.get("/approvals?waiting=false")).json["approvals"]
        path, reason = f"/approvals/{everything[0]['approval_id']}", "another message came"
        reply = await self.api.post(path, {"decision": decision, "reason": "" if decision == "approve" else reason})
        if reply.status == 200 and (resumed := reply.json["resumed"]):
            self.earlier = self.earlier or resumed["run_id"]
            await self.api.events(resumed["run_id"])
        return reply

    async def click_deny(self) -> Reply:
        return await self.click("deny")

    async def hand_out(self) -> None:
        self.client = Client(self.api, session_id=self.session_id)
        await self.client.send(said("look it up"))

    async def result(self) -> Reply:
        """Send the result of the call that was handed out."""
        assert self.client is not None
        [call] = self.client.history[1]["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": "Ann is 42"}
        return self.led_to(await self.client.post(result))

    async def result_of_others(self) -> Reply:
        call = {"id": "call_1", "type": "function", "function": {"name": "lookup", "arguments": "{}"}}
        calling = {"role": "assistant", "content": None, "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
        body = {"messages": [said("?"), calling, result], "tools": [LOOKUP]}
        return await self.api.post("/v1/chat/completions", body)

    def led_to(self, reply: Reply) -> Reply:
        self.earlier = self.earlier or reply.json.get("run_id")
        return reply


SCENES: Mapping[tuple[str, str], tuple[str, tuple[Any, ...]]] = {
    ("code", "an unknown code"): ("guess", ()),
    ("code", "several questions"): ("ask_in_two_places approve", (MILK, MILK)),
    ("word", "no question"): ("word", (DONE,)),
    ("word", "several questions"): ("ask word", (MILK & BREAD,)),
    ("answer", "an expired question"): ("ask_and_wait approve", (MILK,)),
    ("answer", "a question answered otherwise"): ("ask deny approve", (MILK, DONE)),
    ("answer", "a question"): ("ask approve", (MILK, DONE)),
    ("answer", "a question of another door"): ("ask_elsewhere approve", (MILK,)),
    ("answer", "a question followed by a message"): ("ask say deny", (MILK, DONE)),
    ("answer", "an answered question"): ("ask approve approve", (MILK, DONE)),
    ("answer", "an answered question, its run failed at once"): (
        "ask approve approve",
        (MILK, http_error(400), DONE),
    ),
    ("card", "other questions of the run"): ("ask click", (MILK & BREAD,)),
    ("card", "a question"): ("ask click", (MILK, DONE)),
    ("card", "a question of another door"): ("ask_elsewhere click", (MILK,)),
    ("card", "a question followed by a message"): ("ask say click_deny", (MILK, DONE)),
    ("card", "an answered question"): ("ask click click", (MILK, DONE)),
    ("results", "no run of ours"): ("result_of_others", (DONE,)),
    ("results", "their calls"): ("hand_out result", (CALLS, DONE)),
    ("results", "results that came before"): ("hand_out result result", (CALLS, DONE)),
    ("results", "results that came before, their run failed"): (
        "hand_out result result",
        (CALLS, http_error(400), DONE),
    ),
    ("message", "nothing"): ("say", (DONE,)),
    ("message", "calls or questions"): ("ask say", (MILK, DONE)),
}


@pytest.mark.fault("http api: an expired code, at the HTTP door")
@pytest.mark.fault("http api: a code after another message, at the HTTP door")
@pytest.mark.fault("http api: a word with two questions open, at the HTTP door")
@pytest.mark.fault("http api: another answer to a question that was answered")
@pytest.mark.fault("http api: an approval by a word that a client sends again")
@pytest.mark.parametrize("row", TABLE, ids=" ~ ".join)
async def test_what_came_and_what_is_open_make_this_run(row: tuple[str, str], tmp_path: Path) -> None:
    (steps, script), outcome = SCENES[row], TABLE[row]
    minutes = 0.0001 if row == ("answer", "an expired question") else 60
    async with agent(*script, tmp_path=tmp_path, permissions={"open_minutes": minutes}) as api:
        session_id = (await api.post("/session/start")).json["session_id"]
        scene = Scene(api, session_id, tmp_path / "agent" / "store.db")
        reply = Reply(0, {}, b"")
        for step in steps.split():
            reply = await getattr(scene, step)()
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
