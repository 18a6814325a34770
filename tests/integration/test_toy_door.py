"""A new front door needs the product and its runs alone: it streams, asks, stops, and goes on after a kill."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from task.llm.scripted import says, wants
from tests.support.api_client import coded
from tests.support.toy_person import ROOT, SECONDS, door, text_of
from tests.support.upstream import hanging, openai_upstream

CALLED = """import asyncio

async def once():
    services, profile = opened(load_settings())
    door = Door(services, profile)
    await door.answer("ann", "Hi", None)
    await door.runner.close()
    await services.close()

asyncio.run(once())
"""


async def test_a_toy_door_streams_and_keeps_the_conversation(tmp_path: Path) -> None:
    async with (
        openai_upstream(hanging(says("One ", "two"), chunks=2), says("Three.")) as upstream,
        door(tmp_path, upstream.url) as (person, _),
    ):
        person.writes("count")
        early = await person.reads_until("text")
        person.writes("/stop")
        stopped = await person.reads_until("finished")
        person.writes("go on")
        last = await person.reads_until("finished")
        sent = [item["content"] for item in upstream.requests[-1].messages if item["role"] != "system"]
    assert text_of(early) == "One "
    assert stopped[-1]["status"] == "cancelled"
    assert (text_of(last), last[-1]["status"]) == ("Three.", "finished")
    assert sent == ["count", "One ", "go on"]


@pytest.mark.system
async def test_an_approval_given_after_kill_9_runs_the_call_once(tmp_path: Path) -> None:
    asks = says("I would. ") & wants("write_note", text="milk")
    async with openai_upstream(asks, says("Done."), says("Again.")) as upstream:
        async with door(tmp_path, upstream.url) as (person, process):
            person.writes("note it")
            asked = await person.reads_until("finished")
            process.kill()
        question = next(event["text"] for event in asked if event["type"] == "approval")
        async with door(tmp_path, upstream.url) as (person, _):
            person.writes(coded("approve", question))
            done = await person.reads_until("finished")
            person.writes(coded("approve", question))
            again = await person.reads_until("finished")
            person.writes(coded("deny", question))
            [refused] = await person.reads_until("refused")
        async with door(tmp_path, upstream.url) as (person, _):
            person.writes(f"/session {asked[-1]['session_id']}")
            person.writes("What did you note?")
            await person.reads_until("finished")
        results = [item["content"] for item in upstream.requests[-1].messages if item["role"] == "tool"]
    assert asked[-1]["status"] == "suspended"
    assert (text_of(done), done[-1]["run_id"]) == ("Done.", again[-1]["run_id"])
    assert "the first answer counts" in refused["text"]
    assert results == ["noted: milk"]
    assert (tmp_path / "notes.txt").read_text() == "milk\n"


async def test_the_documented_example_of_a_door_answers(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    example = page.partition("```python\n")[2].partition("```")[0]
    program = f"{example}\n\n{CALLED}"
    async with openai_upstream(says("Hello.")) as upstream:
        variables = {
            "PATH": os.defpath, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "AGENT_BACKEND": "openai",
            "AGENT_DATA_DIR": str(tmp_path / "data"), "OPENAI_BASE_URL": upstream.url, "OPENAI_API_KEY": "sk-test",
        }  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, cwd=tmp_path, env=variables, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(SECONDS):
            output, _ = await process.communicate()
    assert process.returncode == 0
    assert "'type': 'text', 'text': 'Hello.'" in output.decode()
