"""Approvals through local Core: as DIAL Chat reads them, as programs do, by `dial-agent ask`, on two replicas."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from task.approvals.approvals import Claims
from task.core_client.files import DialFiles
from task.llm.scripted import Reply, says, wants
from task.settings import Settings
from tests.support.agent import running_agent
from tests.support.chat_reader import chat_reader
from tests.support.codes import codes_shown
from tests.support.core_peers import dialling
from tests.support.note_product import notes, noting
from tests.support.product import DEPLOYMENT, MODEL, Product
from tests.support.terminal import terminal
from tests.support.up import ROOT, environment
from tests.support.upstream import Received

if TYPE_CHECKING:
    from aidial_client import AsyncDial


pytestmark = pytest.mark.usefixtures("chat")


@pytest.mark.fault("tool: arguments that are too long to be approved")
async def test_a_call_too_long_to_be_approved_is_refused_and_the_state_stays_small(tmp_path: Path) -> None:
    def model(received: Received) -> Reply:
        return says("No.") if received.messages[-1]["role"] == "tool" else wants("write_note", text="é" * 60_000)

    async with noting(tmp_path, then=model) as p:
        answer = await p.reader.ask("Note much")
    assert (answer.content, answer.form_schema, notes(tmp_path)) == ("No.", None, [])
    assert "its arguments are too long; send less, in several calls" in p.upstream.requests[1].messages[-1]["content"]
    assert len(json.dumps(answer.state)) <= 200 * 1024


@pytest.mark.fault("approval: an approval used twice")
async def test_of_twenty_who_approve_at_once_one_is_first_with_a_core_and_without(tmp_path: Path) -> None:
    async with noting(tmp_path) as p:
        files = DialFiles(p.core.url)
        rivals = [Claims(files) for _ in range(20)]
        taken = await asyncio.gather(*(rival.take("a-turn", 2e9, "key-one") for rival in rivals))
        alone = Claims(DialFiles("http://127.0.0.1:9"))
        assert [await alone.take("a-turn", 2e9, "key") for _ in range(2)] == [True, False]
    assert taken.count(True) == 1


def command(p: Product, home: Path, *options: str) -> tuple[list[str], dict[str, str]]:
    """`dial-agent ask` and its environment."""
    environ = environment(home, DIAL_ENDPOINT=p.core.url, DIAL_API_KEY="key-one", PYTHONPATH=str(ROOT))
    return [sys.executable, "-m", "task", "ask", "Note 1", *options], environ


@pytest.mark.parametrize("stream", [True, False])
async def test_a_program_reads_the_same_question_and_answers_it(tmp_path: Path, *, stream: bool) -> None:
    async with noting(tmp_path) as p:
        seen = await p.reader.ask("Note 1")
        async with dialling(p.core) as client:
            question: Any = {"role": "user", "content": "Note 1"}
            asked = await completed(client, [question], stream=stream)
            [code], [code_seen] = codes_shown(asked["content"]), codes_shown(seen.content)
            assert asked["content"].replace(code, code_seen) == seen.content
            form = json.dumps(asked["custom_content"]["form_schema"])
            numbers = str(int(code, 36)), str(int(code_seen, 36))
            assert json.loads(form.replace(code, code_seen).replace(*numbers)) == seen.form_schema
            kept = {"role": "assistant", "content": asked["content"]}
            kept["custom_content"] = {"state": asked["custom_content"]["state"]}
            reply = {"role": "user", "content": f"deny {code} because it is enough"}
            answer = await completed(client, [question, kept, reply], stream=stream)
    assert answer["content"] == "Result: 2"
    assert notes(tmp_path) == []
    assert "the user denied it: it is enough" in str(p.upstream.requests[-1].messages)


async def completed(client: AsyncDial, messages: list[Any], *, stream: bool) -> dict[str, Any]:
    """The message of an answer, put together from its chunks where it is streamed."""
    create = client.chat.completions.create
    if not stream:
        whole = await create(deployment_name=DEPLOYMENT, messages=messages, stream=False)
        return whole.choices[0].message.model_dump(exclude_none=True)
    chunks = await create(deployment_name=DEPLOYMENT, messages=messages, stream=True)
    content, custom = "", dict[str, Any]()
    async for chunk in chunks:
        delta = chunk.choices[0].delta.model_dump(exclude_none=True) if chunk.choices else {}
        content += delta.get("content") or ""
        custom |= delta.get("custom_content") or {}
    return {"content": content, "custom_content": custom}


@pytest.mark.fault("approval: an approval used twice")
async def test_a_second_try_of_an_approval_is_refused_by_every_process(tmp_path: Path) -> None:
    async with noting(tmp_path, state_secret="of both") as p:
        settings = {"dial_endpoint": p.core.url, "deployment_name": MODEL, "state_secret": "of both"}
        paths = {"tool_paths": [str(tmp_path / "noting.py")], "data_dir": tmp_path / "second"}
        upstream = {"openai_base_url": p.upstream.url, "openai_api_key": "sk-test"}
        async with chat_reader(p.agent_url, "key-one") as here:
            asked = await here.ask("Note 1")
            assert asked.form_schema is not None, asked.error
            async with (
                running_agent(Settings.model_validate({**settings, **paths, **upstream})) as second,
                chat_reader(second, "key-one") as there,
            ):
                there.messages = copy.deepcopy(here.messages)
                resumed = await there.ask("approve")
                assert (resumed.content, notes(tmp_path)) == ("Result: 2", ["1"])
                used = [(await there.again()).content, (await here.ask("approve")).content]
    assert ["was used before" in content for content in used] == [True, True]
    assert notes(tmp_path) == ["1"]


async def asking(p: Product, home: Path, *options: str, **streams: Any) -> Process:
    arguments, environ = command(p, home, *options)
    return await asyncio.create_subprocess_exec(*arguments, cwd=home, env=environ, **streams)


@pytest.mark.fault("approval: an approval where nobody can be asked")
async def test_without_a_terminal_it_ends_with_a_sentence_and_an_exit_code(tmp_path: Path) -> None:
    async with noting(tmp_path) as p:
        process = await asking(p, tmp_path, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        out, err = await asyncio.wait_for(process.communicate(b"yes\n"), 20)
        lines = await asking(p, tmp_path, "--json", stdout=PIPE, stderr=PIPE)
        output, _ = await asyncio.wait_for(lines.communicate(), 20)
    assert process.returncode == lines.returncode == 4
    assert b"May I do this?" in out
    assert b"Nothing has run" in err
    events = list(map(json.loads, output.splitlines()))
    [asked] = [event for event in events if event["type"] == "approval"]
    answer = "".join(event["text"] for event in events if event["type"] == "text")
    assert tuple(item["code"] for item in asked["approvals"]) == codes_shown(answer)
    assert notes(tmp_path) == []


async def test_at_a_terminal_the_person_is_asked_and_the_answer_continues(tmp_path: Path) -> None:
    async with noting(tmp_path) as p:
        async with terminal(*command(p, tmp_path), tmp_path) as window:
            await window.wait_for("[deny]")
            await window.send("y\r")
            await window.wait_for("Result: 2")
            assert await window.ended() == 0
        assert window.shows("Risk")
    assert notes(tmp_path) == ["1"]


@pytest.mark.fault("state: a chat that was renamed")
async def test_a_person_presses_buttons_and_the_answer_continues(tmp_path: Path) -> None:
    async with noting(tmp_path) as p:
        asked = await p.reader.ask("Note 1")
        assert notes(tmp_path) == []
        answer = await p.reader.press("Approve", asked)
        assert notes(tmp_path) == ["1"]
        both = await p.reader.ask("Note both")
        _, two = codes_shown(both.content)
        rest = await p.reader.press(f"Approve {two}: write_note 2", both)
        assert notes(tmp_path) == ["1", "2"]
        denied = await p.reader.press("Deny", rest)
        assert notes(tmp_path) == ["1", "2"]
        p.reader.conversation_id = "conversations/bucket/New chat"
        await p.reader.press("Always", await p.reader.ask("Note 1 again"))
        p.reader.conversation_id = "conversations/bucket/Notes"
        always = await p.reader.ask("Note 1")
    assert (asked.error, asked.finish_reason, asked.done) == (None, "stop", True)
    assert [stage.status for stage in asked.stages.values()] == ["completed", "completed"]
    assert [stage.name.split(" [")[0] for stage in asked.stages.values()] == ["calculator: 1+1", "write_note: 1"]
    assert len([stage for stage in both.stages.values() if stage.parent is None]) <= 3
    assert asked.content.startswith("**May I do this?**")
    assert asked.usage is not None
    assert answer.usage is not None
    assert (answer.content, answer.form_schema) == ("Result: 2", None)
    assert denied.content.startswith("Result: ")
    assert (always.form_schema, notes(tmp_path)) == (None, ["1", "2", "1", "1"])
