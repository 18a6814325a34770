"""Settings of the framework have their effect in the console: on what the model gets, on questions, and on files."""

import asyncio
import json
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from task.closing import run_blocking
from task.console.configuration import ConfigurationManager
from task.console.controller import FrameworkController
from task.console.conversation import SUMMARISE
from task.conversation.inputs import Answer
from task.llm.scripted import Reply, says, wants
from task.store.trace_records import Trace
from tests.support.command_console import OWNER, ListedConsole, ListedOutput, command_console, talking
from tests.support.console import console, openai
from tests.support.up import dial_agent
from tests.support.upstream import openai_upstream

SUMMARISES = SUMMARISE.partition(",")[0]


def texts(request: Any) -> list[str]:
    """The messages of a model request, each with its role, without the system prompt of the product."""
    return [f"{message['role']}: {message.get('content')}" for message in request.messages[1:]]


async def traced(console: ListedConsole) -> list[Trace]:
    """The traces of the conversation, oldest first."""

    async def found() -> list[Trace]:
        store = await console.product.services.store.get()
        await store.writer.flush()
        return list(reversed((await store.traces.list(OWNER)).items))

    return await asyncio.to_thread(run_blocking, found)


async def test_the_state_file_keeps_the_conversation_for_the_next_console(tmp_path: Path) -> None:
    kept = tmp_path / "state.json"
    async with openai_upstream(says("Blue."), says("You like blue.")) as upstream:
        async with command_console(tmp_path, upstream.url, console={"state_file": str(kept)}) as console:
            await console.types("/system Be brief.")
            await console.types("My colour is blue.")
            before, session = console.history.serialize(), console.session_id
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        async with command_console(tmp_path, upstream.url, console={"state_file": str(kept)}) as console:
            assert console.history.serialize() == before
            await console.types("Which colour?")
            assert (len(console.history), console.session_id) == (5, session)
            await console.types("/clear")
        async with command_console(tmp_path, upstream.url, console={"state_file": str(kept)}) as console:
            assert [item["content"] for item in console.history.get_messages()] == ["Be brief."]
            assert console.session_id is None
    assert texts(upstream.requests[1]) == ["user: My colour is blue.", "assistant: Blue.", "user: Which colour?"]
    assert "Be brief." in upstream.requests[1].messages[0]["content"]


@pytest.mark.fault("console: a context, a policy or a state file that cannot be used")
@pytest.mark.fault("teps: a state file that is something else, or cannot be written")
@pytest.mark.parametrize("content", ["", "{", "[]", '{"messages": 3}', '{"messages": [{"role": "judge"}]}', "\udcff"])
async def test_a_state_file_that_is_no_conversation_is_one_line_and_stays(tmp_path: Path, content: str) -> None:
    kept = tmp_path / "state.json"
    kept.write_bytes(content.encode(errors="surrogateescape"))
    output = ListedOutput()
    (tmp_path / "config.yaml").write_text(
        f"backend: openai\nopenai_api_key: k\ndata_dir: {tmp_path}/data\nadvanced: {{state_file: {kept}}}\n"
    )
    controller = FrameworkController(ConfigurationManager(str(tmp_path / "config.yaml")), ui=output)
    assert await asyncio.to_thread(controller.initialize) is False
    await asyncio.to_thread(controller.shutdown)
    [line] = output.shown
    assert "is not a saved conversation" in line
    assert kept.read_bytes() == content.encode(errors="surrogateescape")


@pytest.mark.fault("teps: a state file that is something else, or cannot be written")
async def test_a_state_file_that_cannot_be_written_is_said_and_the_conversation_goes_on(tmp_path: Path) -> None:
    async with talking(
        tmp_path, says("One."), says("Two."), console={"state_file": "/proc/nowhere/state.json"}
    ) as console:
        shown = await console.types("First")
        await console.types("Second")
    assert "cannot be written" in shown[-1]
    assert texts(console.upstream.requests[1])[:2] == ["user: First", "assistant: One."]


async def test_messages_of_the_settings_begin_the_conversation(tmp_path: Path) -> None:
    said = {"system": "Speak like a pirate.", "user": "Hello", "assistant": "Arr."}
    first = [{"role": role, "content": text} for role, text in said.items()]
    answers = (says("Arr, blue."), says("Arr again."))
    async with talking(tmp_path, *answers, history={"default_initial_messages": first}) as console:
        await console.types("Which colour?")
        await console.types("And now?")
    one, other = console.upstream.requests
    assert all("Speak like a pirate." in request.messages[0]["content"] for request in (one, other))
    sent = ["user: Hello", "assistant: Arr.", "user: Which colour?"]
    assert (texts(one), texts(other)) == (sent, [*sent, "assistant: Arr, blue.", "user: And now?"])


async def test_summarize_asks_the_model_once_and_the_next_turn_begins_with_the_summary(tmp_path: Path) -> None:
    answers = [says("A1."), says("A2."), says("A3."), says("The user counts to four."), says("A4.")]
    history = {"max_length": 5, "pruning_strategy": "summarize", "summary_tokens": 123}
    core: dict[str, Any] = {"backend": "dial", "dial_api_key": "key-one"}
    async with (
        openai_upstream(*answers) as upstream,
        command_console(tmp_path, upstream.url, history=history, dial_endpoint=upstream.endpoint, **core) as console,
    ):
        console.conversation.caller = replace(console.caller, headers={"X-Team": "blue"})
        for word in ("One", "Two", "Three", "Four"):
            await console.types(word)
        assert len({trace.session_id for trace in await traced(console)}) == 2  # the summarised one stays
    asked = [request for request in upstream.requests if request.messages[0]["content"].startswith(SUMMARISES)]
    [summary] = asked
    assert summary.body.get("max_tokens", summary.body.get("max_completion_tokens")) == 123
    assert "tools" not in summary.body
    assert [request.headers.get("x-team") for request in upstream.requests] == ["blue"] * 5
    last = texts(upstream.requests[-1])
    assert any("The user counts to four." in text for text in last)
    assert last[-1] == "user: Four"
    assert not any("A2." in text for text in last)


@pytest.mark.parametrize("keeps", [True, False])
async def test_system_messages_go_with_the_old_ones_where_the_settings_say_so(tmp_path: Path, keeps: bool) -> None:
    history = {"max_length": 4, "prioritize_system_messages": keeps}
    async with talking(tmp_path, says("A1."), says("A2."), says("A3."), history=history) as console:
        await console.types("/system Speak like a pirate.")
        for word in ("One", "Two", "Three"):
            await console.types(word)
    assert ("Speak like a pirate." in console.upstream.requests[-1].messages[0]["content"]) is keeps


def writes(name: str = "a.txt") -> Reply:
    return wants("file_write", file_path=name, content="x", intent="Note it")


async def test_the_model_knows_the_framework_s_names_and_each_decision_is_in_the_trace(tmp_path: Path) -> None:
    script = (wants("bash", command="echo hi"), writes("n.txt"), wants("file_read", file_path="n.txt"), says("Done."))
    async with talking(tmp_path, *script, teps={"permission_required": False}) as console:
        await console.types("Work")
        traces = await traced(console)
        assert console.output.asked == []
    names = {tool["function"]["name"] for tool in console.upstream.requests[0].body["tools"]}
    assert {"bash", "file_read", "file_write"} <= names
    assert names.isdisjoint({"shell_run", "fs_read", "fs_write"})
    results = [json.loads(m["content"]) for m in console.upstream.requests[-1].messages if m["role"] == "tool"]
    assert results[0] == {"stdout": "hi\n", "stderr": "", "exit_code": 0}
    made = [(each.tool, each.verdict) for trace in traces for each in trace.decisions]
    assert made == [("shell_run", "allowed"), ("fs_write", "allowed"), ("fs_read", "allowed")]


@pytest.mark.parametrize("remembers", [True, False])
async def test_always_is_offered_where_confirmations_are_remembered(tmp_path: Path, remembers: bool) -> None:
    teps = {"remember_confirmations": remembers, "confirmation_seconds": 7}
    async with talking(tmp_path, writes("a.txt"), writes("b.txt"), says("Done."), teps=teps) as console:
        console.output.answers[:] = [Answer(True, always=True)] * 2
        await console.types("Write")
        asked, patience = console.output.asked, console.output.patience
    assert [bool(question.grant) for question in asked] == ([True] if remembers else [False, False])
    assert set(patience) == {7}
    assert sorted(path.name for path in (tmp_path / "work").iterdir()) == ["a.txt", "b.txt"]


@pytest.mark.fault("teps: a tool that takes too long, or a command that fails")
async def test_a_tool_of_the_console_has_the_documented_timeout(tmp_path: Path) -> None:
    async with talking(
        tmp_path,
        wants("bash", command="sleep 60"),
        says("Too slow."),
        teps={"permission_required": False, "tool_timeout": 300},
    ) as console:
        await console.types("Sleep")
    [result] = [message["content"] for message in console.upstream.requests[-1].messages if message["role"] == "tool"]
    assert "timeout" in result or "stopped after" in result


async def test_the_log_goes_to_its_file_at_its_level(tmp_path: Path) -> None:
    log = tmp_path / "chat.log"
    async with openai_upstream(says("Hi.")) as upstream:
        environ = {**openai(upstream.url), "AGENT_LOG_FILE": str(log), "AGENT_LOG_LEVEL": "DEBUG"}
        done = await dial_agent(tmp_path, "chat", "-p", "Hello", **environ)
    assert (done.code, "Hi." in done.out) == (0, True), done.err
    assert "DEBUG " in log.read_text()


COLOUR = re.compile(r"\x1b\[[0-9;]*(?<![0-9])(?:3[0-8]|9[0-7])[0-9;]*m")
LOOKS = {
    "framework": {"name": "Desk", "version": "2.1", "debug_mode": True},
    "ui": {
        "prompt_symbol": "?? ", "assistant_prefix": "Agent: ", "system_prefix": "Note: ", "error_prefix": "Oops: ",
        "tool_prefix": "Call: ", "show_timestamps": True, "color_enabled": False,
    },
}  # fmt: skip


async def test_the_console_looks_as_its_settings_say(tmp_path: Path) -> None:
    script = (wants("calculator", expression="2*3"), says("Six."))
    async with openai_upstream(*script) as upstream, console(tmp_path, config=LOOKS, **openai(upstream.url)) as person:
        await person.say("How much?")
        await person.type("/nope", until="Unknown command")
        await person.window.wait_for("Six.")
        drawn, raw = person.window.text(), person.window.transcript.decode(errors="replace")
    chosen = ("Desk 2.1 started.", "?? How much?", "Agent:", "Note:", "Oops:", "Call:", "debug:")
    default = ("Framework Core Application started.", "> How much?", "Assistant:", "System:", "Error:", "Tool:")
    assert [sign for sign in chosen if sign not in drawn] == [sign for sign in default if sign in drawn] == []
    assert re.search(r"\d\d:\d\d(:\d\d)? +Agent:", drawn)
    assert not COLOUR.search(raw)
