"""Sub-agents in runs: the trace of one, and what they have done when the process was killed."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from task.llm.base import Usage
from task.llm.scripted import Pause, Reply, says, wants
from tests.support.api_client import Client, agent, coded, waiting
from tests.support.coding import CODER, plan, project
from tests.support.http_api import http_api, said
from tests.support.toy_person import door, text_of
from tests.support.upstream import openai_upstream

WAIT = 60.0
ENABLED: dict[str, Any] = {"agents": {"enabled": True}}
SUM = wants("calculator", expression="25*47")


async def test_the_trace_shows_what_a_sub_agent_did_and_counts_its_tokens(tmp_path: Path) -> None:
    used = [Usage(100, 10), Usage(200, 20), Usage(300, 30), Usage(400, 40)]
    answers = [wants("delegate", task="Multiply."), SUM, says("1175"), says("It is 1175.")]
    script = [Reply((*answer.events, usage)) for answer, usage in zip(answers, used, strict=True)]
    async with http_api(*script, tmp_path=tmp_path, **ENABLED) as api:
        reply = await api.complete("25*47?")
        [listed] = (await api.get("/traces")).json["traces"]
        trace = (await api.get(f"/traces/{listed['trace_id']}")).json
    assert reply.json["usage"]["total_tokens"] == 1100
    calls = [(call["name"], "::inner::" in call["id"], call["result"]) for call in trace["tool_calls"]]
    assert calls == [("calculator", True, "1175"), ("delegate", False, "1175")]
    assert [turn["role"] for turn in trace["turns"]] == ["user", "assistant", "tool", "assistant"]
    assert sorted(item["tool"] for item in trace["decisions"]) == ["calculator", "delegate"]


@pytest.mark.system
@pytest.mark.fault("sub-agents: kill -9 while one waits for the user, and while one works in a coding task")
async def test_a_sub_agent_that_waits_for_the_user_continues_after_kill_9(tmp_path: Path) -> None:
    asks = [wants("delegate", task="Multiply, then note."), SUM, wants("write_note", text="1175")]
    async with openai_upstream(*asks, says("Noted."), says("Done.")) as upstream:
        async with door(tmp_path, upstream.url, **ENABLED) as (user, process):
            user.writes("go")
            asked = await user.reads_until("finished")
            process.kill()
        [question] = [event["text"] for event in asked if event["type"] == "approval"]
        async with door(tmp_path, upstream.url, **ENABLED) as (user, _):
            user.writes(coded("approve", question))
            done = await user.reads_until("finished")
        of_sub_agent, of_agent = (
            [m["content"] for m in r.messages if m["role"] == "tool"] for r in upstream.requests[3:]
        )
    stages = [(event["name"].partition(" ")[0], event["parent"]) for event in asked if event["type"] == "stage_opened"]
    assert stages == [("delegate:", None), ("calculator:", 1)]
    assert (asked[-1]["status"], text_of(done), of_sub_agent, of_agent) == (
        "suspended",
        "Done.",
        ["1175", "noted: 1175"],
        ["Noted."],
    )
    assert (tmp_path / "notes.txt").read_text() == "1175\n"


@pytest.mark.system
@pytest.mark.timeout(300)
async def test_a_coding_task_killed_in_mid_sub_agents_continues_them(tmp_path: Path) -> None:
    write, hangs = wants("fs_write", path="one.txt", content="1"), Reply((Pause(600),))
    begins = [plan(), wants("delegate", task="Write one.txt."), write, hangs]
    environ = {"AGENT_AGENTS__ENABLED": "true", "AGENT_OLLAMA__CONTEXT_TOKENS": "32768"}
    async with project(tmp_path, *begins, files={"app.py": "value = 1\n"}) as found:
        arguments = ("run", "Do it.", "--apply", "--workspace", str(found.folder), "--verify", "true", "--json")
        async with found.started(*arguments, *found.sandbox, **environ) as process:
            assert process.stdout is not None
            async with asyncio.timeout(WAIT):
                run_id = json.loads(await process.stdout.readline())["run_id"]
                await found.ollama.seen(requests=len(begins))
                process.send_signal(signal.SIGKILL)
                await process.wait()
        (found.folder / "one.txt").write_text("written by the user\n")
        await found.ollama.script(says("Written."), says("All done."))
        resumed = await found.agent("tasks", "resume", run_id, "--apply", "--json", *found.sandbox, cwd=None, **environ)
        requests = [body["messages"] for body in await found.requests(CODER)]
    assert resumed.event("task_ended")["answer"] == "All done.", resumed.out + resumed.err
    assert (found.folder / "one.txt").read_text() == "written by the user\n"
    assert [m["role"] for m in requests[-2]] == ["system", "user", "assistant", "tool"]  # the sub-agent's
    assert [m["content"] for m in requests[-1] if m["role"] == "tool"] == ["Written."]


async def test_clients_read_and_answer_a_session_in_which_a_sub_agent_asks(tmp_path: Path) -> None:
    script = [
        wants("delegate", task="Note it."),
        wants("write_note", text="a"),
        says("noted"),
        says("Done."),
        says("Hi."),
    ]
    async with agent(*script, tmp_path=tmp_path, **ENABLED) as api:
        session = (await api.post("/session/start")).json["session_id"]
        client = Client(api, session_id=session)
        asked = await client.send(said("go"))
        [approval] = await waiting(api)
        changed = {"decision": "approve", "arguments": {"text": "b"}}
        refused = await api.post(f"/approvals/{approval['approval_id']}", changed)
        listed = (await api.get(f"/session/{session}/messages")).json["messages"]
        exported = await api.get(f"/session/{session}/export")
        done = await client.decide("approve")
        again = await client.send(said("and now?"))
        sent = api.upstream.requests[-1].messages
    assert (refused.status, "cannot be changed" in refused.text) == (409, True), refused.text
    assert [item["role"] for item in listed] == ["user", "assistant", "tool"]
    assert (exported.status, "write_note" in exported.text) == (200, False)
    assert ("write_note" in asked["content"], done["content"], again["content"]) == (True, "Done.", "Hi.")
    assert [item["role"] for item in sent] == ["system", "user", "assistant", "tool", "assistant", "user"]
