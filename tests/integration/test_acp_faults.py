"""An editor and its agent as processes: rubbish, an editor that dies, a session in two processes, its MCP servers."""

import asyncio
import json
import re
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import acp
import pytest
from acp import schema

from task.llm.scripted import says, wants
from task.store.store import SNAPSHOTS
from tests.support.acp_editor import SECONDS, editor, openai, raw
from tests.support.mcp_wire import listed, raw_server
from tests.support.stores import opened
from tests.support.up import dial_agent, environment
from tests.support.upstream import openai_upstream
from tests.support.waiting import until

SUPPORT = Path(__file__).parents[1] / "support"
COMMAND = [sys.executable, "-m", "task", "acp"]
RUBBISH = [
    b"no json",
    b"\xff\xfe",
    b'{"jsonrpc": "2.0", "id": 1, "method": "a": }',
    b"[" * 100_000,
    b"[]",
    b"17",
    b'[{"jsonrpc": "2.0", "id": 1, "method": "initialize"}]',
    b'{"jsonrpc": "2.0", "id": [1], "result": {}}',
    b'{"jsonrpc": "2.0", "id": true, "result": {}}',
    b'{"jsonrpc": "2.0", "id": 1, "error": "no"}',
    b'{"jsonrpc": "2.0", "id": 99, "result": {}}',
    b'{"jsonrpc": "2.0"}',
    b"\r",
    b"x" * 50_000_000,
]
REFUSED = {
    b'{"jsonrpc": "2.0", "id": 7, "method": {}}': -32603,
    b'{"jsonrpc": "2.0", "id": 7, "method": "no/such"}': -32601,
    b'{"jsonrpc": "2.0", "id": 7, "method": "session/prompt", "params": []}': -32602,
    b'{"jsonrpc": "2.0", "id": 7, "method": "session/new", "params": {"cwd": 5, "mcpServers": []}}': -32602,
}


def request(method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 0, "method": method, "params": params}).encode()


async def reply(process: asyncio.subprocess.Process, line: bytes) -> dict[str, Any]:
    """The next message with an id after this line was sent."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + b"\n")
    async with asyncio.timeout(SECONDS):
        while "id" not in (found := json.loads(await process.stdout.readline())):
            pass
    return found


@pytest.mark.system
@pytest.mark.fault("ACP: rubbish, messages of odd shapes, a line of 50 MB")
async def test_rubbish_is_ignored_or_refused_and_the_process_goes_on(tmp_path: Path) -> None:
    async with openai_upstream() as upstream, raw(tmp_path / "home", **openai(upstream.url)) as process:
        assert process.stdin is not None
        process.stdin.writelines(line + b"\n" for line in RUBBISH)
        codes = {line: (await reply(process, line))["error"]["code"] for line in REFUSED}
        hello = await reply(process, request("initialize", protocolVersion=99))
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), SECONDS) == 0
    assert codes == REFUSED
    assert hello["result"]["protocolVersion"] == acp.PROTOCOL_VERSION


@pytest.mark.system
@pytest.mark.fault("ACP: half of a character in a prompt")
async def test_half_of_a_character_is_answered_like_any_other(tmp_path: Path) -> None:
    home = tmp_path / "home"
    async with openai_upstream(says("Yes.")) as upstream, editor(home, **openai(upstream.url)) as at:
        session = await at.open(tmp_path)
        half = acp.resource_block(acp.embedded_text_resource("file:///\ud800", "\ud800"))
        assert (await session.say([acp.text_block("\ud800"), half])).text == "Yes."


@pytest.mark.system
@pytest.mark.fault("ACP: the editor dies while a command runs")
async def test_when_the_editor_dies_the_run_is_stopped_and_nothing_is_left(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    endless = wants("bash", command="echo $$ > pid; while true; do date > beat; sleep 0.05; done")
    async with openai_upstream(endless) as upstream:
        async with editor(tmp_path / "home", **openai(upstream.url)) as at:
            session = await at.open(work)
            asking = asyncio.create_task(session.say("Go.", "allow_once"))
            await until(lambda: (work / "beat").exists(), SECONDS)
            assert at.process.stdin is not None
            at.process.stdin.close()
            assert await asyncio.wait_for(at.process.wait(), SECONDS) == 0
            with suppress(Exception):
                await asking
        beat = (work / "beat").stat().st_mtime_ns
        assert await asyncio.to_thread(stays, work / "beat", beat)
    async with opened(f"sqlite:///{tmp_path}/home/data/store.db") as store:
        runs = (await store.runs.list("local")).items
        assert [run.status for run in runs] == ["cancelled", "suspended"]
    assert list((tmp_path / "home" / "data" / SNAPSHOTS).iterdir()) == []


def stays(file: Path, stamp: int) -> bool:
    """Whether a file that was written twenty times a second is not written any more."""
    import time

    time.sleep(0.3)
    return file.stat().st_mtime_ns == stamp


@pytest.mark.system
async def test_the_documented_client_gets_an_answer(tmp_path: Path) -> None:
    page = (SUPPORT.parents[1] / "docs" / "console.md").read_text(encoding="utf-8")
    example = page.partition("### Without an editor")[2].partition("```python\n")[2].partition("```")[0]
    example = example.replace('"dial-agent", "acp"', "*COMMAND").replace(
        "import os\n", f"import os\nCOMMAND = {COMMAND}\n", 1
    )
    async with openai_upstream(says("Hello.")) as upstream:
        environ = environment(tmp_path, **openai(upstream.url))
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", example, cwd=tmp_path, env=environ, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    assert output.decode().startswith("The tools cannot work here")
    assert output.decode().endswith("Hello. (end_turn)\n")


@pytest.mark.system
async def test_a_session_goes_on_in_another_process_and_in_the_console(tmp_path: Path) -> None:
    work, home = tmp_path / "work", tmp_path / "home"
    work.mkdir()
    writes = wants("file_write", file_path="n.txt", content="new\n")
    async with openai_upstream(says("Hello. ") & writes, says("Done."), writes, says("Yes."), says("Bye.")) as upstream:
        async with editor(home, **openai(upstream.url)) as at:
            session = await at.open(work)
            await session.say("Write it.", "allow_once")
            await session.say("Once more.", None)
        async with editor(home, **openai(upstream.url)) as at:
            again, shown = await at.load(session.session_id, work)
            assert [status for _, status in shown.titles] == ["completed", "pending"]
            assert shown.text.startswith("Hello. Done.")
            assert "Code: " in str(shown.calls)
            assert (await again.say("approve")).text == "Yes."
        settings = {"AGENT_DATA_DIR": str(home / "data"), **openai(upstream.url)}
        console = await dial_agent(home, "chat", "--resume", session.session_id, "-p", "Bye?", cwd=work, **settings)
    assert console.out.rstrip().endswith("Bye.")
    assert (work / "n.txt").read_text() == "new\n"


@pytest.mark.system
@pytest.mark.fault("ACP: the code of a question, typed in a console of another folder")
async def test_a_console_of_another_folder_does_not_continue_what_an_editor_asked(tmp_path: Path) -> None:
    work, other, home = tmp_path / "work", tmp_path / "other", tmp_path / "home"
    work.mkdir()
    other.mkdir()
    writes = wants("file_write", file_path="n.txt", content="new\n")
    async with openai_upstream(writes, says("Done.")) as upstream, editor(home, **openai(upstream.url)) as at:
        session = await at.open(work)
        asking = asyncio.create_task(session.say("Write it."))
        await session.until(lambda shown: shown.asked)
        async with opened(f"sqlite:///{home}/data/store.db", chores=False) as store:
            [asked] = await store.approvals.list("local", session_id=session.session_id)
        settings = {"AGENT_DATA_DIR": str(home / "data"), **openai(upstream.url)}
        console = await dial_agent(home, "chat", "-p", f"approve {asked.code}", cwd=other, **settings)
        assert (await asking).text == "Done."
    assert "continues with the tools of its folder" in console.out + console.err
    assert (work / "n.txt").read_text() == "new\n"
    assert list(other.iterdir()) == []


@pytest.mark.system
async def test_servers_of_the_editor_are_strangers_and_their_programs_are_not_started(tmp_path: Path) -> None:
    work, started = tmp_path / "work", tmp_path / "started"
    work.mkdir()
    program = schema.McpServerStdio(name="local", command="/usr/bin/touch", args=[str(started)], env=[])
    answers = {"tools/list": listed("find"), "tools/call": {"content": [{"type": "text", "text": "Found."}]}}
    async with (
        raw_server(answers) as url,
        openai_upstream(wants("client_tickets_find"), says("Done.")) as upstream,
        editor(tmp_path / "home", **openai(upstream.url)) as at,
    ):
        web = schema.HttpMcpServer(type="http", name="tickets", url=url, headers=[])
        session = await at.open(work, mcp_servers=[web, program])
        answer = await session.say("Look.", "allow_once")
        tools = [tool["function"]["name"] for tool in upstream.requests[0].body["tools"]]
    assert [item.tool_call.tool_call_id for item in answer.asked] == [*answer.calls]
    assert answer.titles == [("client_tickets_find", "completed")]
    assert [name for name in tools if name.startswith("client_")] == ["client_tickets_find"]
    assert "The MCP server local has no HTTP address" in str(answer.others)
    assert not started.exists()


@pytest.mark.system
async def test_what_a_server_asks_the_user_is_answered_in_words_in_the_editor(tmp_path: Path) -> None:
    book, home = wants("book", flight="X1"), tmp_path / "home"
    form = {"type": "object", "properties": {"seats": {"type": "integer"}}, "required": ["seats"]}
    asks = {"method": "elicitation/create", "params": {"message": "How many seats?", "requestedSchema": form}}
    pending = {"resultType": "input_required", "inputRequests": {"q": asks}, "requestState": "1"}

    def call(parameters: dict[str, Any]) -> dict[str, Any]:
        answers = parameters.get("inputResponses")
        return {"content": [{"type": "text", "text": f"Booked: {answers}"}]} if answers else pending

    async with (
        raw_server({"tools/list": listed("book"), "tools/call": call}) as url,
        openai_upstream(book, says("Done.")) as upstream,
        editor(home, AGENT_MCP_SERVERS=json.dumps([{"name": "tickets", "url": url}]), **openai(upstream.url)) as at,
    ):
        session = await at.open(home)
        asked = await session.say("Book.", "allow_once", None)
        done = await session.say(f"answer {re.findall(r'answer ([a-z]+[0-9][a-z][0-9])', asked.text)[-1]}: 3")
        result = upstream.requests[-1].messages[-1]["content"]
    assert [len(item.options) for item in asked.asked] == [4, 2]
    assert "How many seats?" in str(asked.asked[1])
    assert (done.text, done.stop) == ("Done.", "end_turn")
    assert "'seats': 3" in result
