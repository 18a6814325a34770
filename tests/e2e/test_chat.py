"""`dial-agent chat` as a process: one question, lines of input, a terminal that is used, interrupted and lost."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from task.cli import Exit
from task.llm.scripted import Reply, says, wants
from tests.support.console import console, openai
from tests.support.terminal import KEYS
from tests.support.up import Finished, environment
from tests.support.upstream import broken_off, hanging, openai_upstream

COMMANDS = "25*47?\n/help\n/system Be brief.\n/nothing"
CALL = wants("calculator", expression="25*47")


async def chat(folder: Path, *options: str, lines: str = "", **environ: str) -> Finished:
    """`dial-agent chat` without a terminal, to its end."""
    home, work = folder / "home", folder / "work"
    for each in (home, work):
        each.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "task", "chat", *options,
        cwd=work, env=environment(home, AGENT_DATA_DIR=str(folder / "data"), **environ),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(lines.encode(errors="surrogateescape")), 120)
    finally:
        if process.returncode is None:
            process.kill()
    return Finished(process.returncode or 0, out.decode(), err.decode())


@pytest.mark.fault("teps: settings in the folder that switch questions off")
@pytest.mark.system
async def test_the_folders_own_settings_cannot_switch_questions_off_unless_they_are_named(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / ".env").write_text("AGENT_TEPS__PERMISSION_REQUIRED=false\n")
    (work / "dial-agent.yaml").write_text("teps: {permission_required: false}\n")
    script = wants("bash", command="touch made"), says("Done."), wants("bash", command="touch made"), says("Done.")
    async with openai_upstream(*script) as upstream:
        unnamed = await chat(tmp_path, "-p", "Make it", **openai(upstream.url))
        assert not (work / "made").exists()
        named = await chat(tmp_path, "-p", "Make it", "--config", "dial-agent.yaml", **openai(upstream.url))
        assert (work / "made").exists()
    assert "AGENT_TEPS__PERMISSION_REQUIRED, dial-agent.yaml" in unnamed.err
    assert "AGENT_TEPS__PERMISSION_REQUIRED" in named.err
    assert "dial-agent.yaml" not in named.err


async def test_each_event_is_one_json_line(tmp_path: Path) -> None:
    async with openai_upstream(CALL, says("It is 1175.")) as upstream:
        done = await chat(tmp_path, "--json", lines=COMMANDS, **openai(upstream.url))
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.out.splitlines()]
    events, others = lines[:-3], [line["type"] for line in lines[-3:]]
    assert done.code == Exit.DONE
    assert (events[0]["type"], events[-1]["type"], events[-1]["status"]) == ("started", "finished", "finished")
    assert "".join(event["text"] for event in events if event["type"] == "text") == "It is 1175."
    assert any(event["type"] == "stage_closed" for event in events)
    assert others == ["commands", "message", "error"]


@pytest.mark.fault("console: input that is no terminal, where a call would be asked about")
@pytest.mark.fault("console: input that is not UTF-8")
@pytest.mark.system
async def test_each_line_of_the_input_is_a_message_and_nothing_is_asked(tmp_path: Path) -> None:
    script = says("One."), wants("bash", command="touch made"), says("Not allowed.")
    async with openai_upstream(*script) as upstream:
        done = await chat(tmp_path, lines="first \udcff\n\n/help\nmake it\n", **openai(upstream.url))
    assert done.code == Exit.DONE
    assert (done.out.startswith("One.\n"), done.out.endswith("Not allowed.\n")) == (True, True)
    assert "/persona" in done.out
    assert "\x1b" not in done.out + done.err
    assert not (tmp_path / "work" / "made").exists()
    assert upstream.requests[0].messages[-1]["content"] == "first \ufffd"
    assert len(upstream.requests) == 3


@pytest.mark.system
@pytest.mark.parametrize(
    ("reply", "environ", "code"),
    [
        (broken_off(says("Half an", " answer"), chunks=2), {}, Exit.FAILED),
        (CALL, {"AGENT_LIMITS__STEPS": "2"}, Exit.LIMITED),
    ],
    ids=["fails", "limited"],
)
async def test_the_exit_code_says_how_the_answer_ended(
    tmp_path: Path, reply: Any, environ: dict[str, str], code: Exit
) -> None:
    async with openai_upstream(then=reply) as upstream:
        done = await chat(tmp_path, "-p", "25*47?", **openai(upstream.url), **environ)
    assert done.code == code
    assert "Traceback" not in done.out + done.err


@pytest.mark.fault(
    "console: bad YAML, an unknown key, a missing variable, an unknown provider, an empty question or an "
    "unknown session at the start"
)
@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ("llm: [", (), "config.yaml"),
        *(
            pytest.param(*values, marks=pytest.mark.system)
            for values in (
                ("llm: {provider: gemni}", (), "the nearest is gemini"),
                ("llm: {provider: openai, openai: {api_key: '${NO_SUCH_KEY}'}}", (), "NO_SUCH_KEY"),
                ("ui: {prompt: x}", (), "ui.prompt"),
                ("", ("-p", " "), "empty"),
                ("", ("--resume", "sess_00000000"), "no session"),
                ("", (), "No model is connected"),
            )
        ),
    ],
    ids=["yaml", "provider", "variable", "key", "question", "session", "model"],
)
async def test_what_is_wrong_at_the_start_is_one_line(
    tmp_path: Path, config: str, options: tuple[str, ...], words: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config)
    environ = openai("http://127.0.0.1:9/v1") if options else {}
    done = await chat(tmp_path, "--config", str(file), *options, **environ)
    assert (done.code, done.out) == (Exit.USAGE, "")
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.mark.fault("console: Ctrl-C in a turn, twice at the prompt, and Ctrl-D")
async def test_ctrl_c_stops_the_turn_and_twice_at_the_prompt_ends_the_program(tmp_path: Path) -> None:
    slow: Reply = says("It begins.")
    async with (
        openai_upstream(hanging(slow, chunks=2), says("Still here.")) as upstream,
        console(tmp_path, **openai(upstream.url)) as person,
    ):
        await person.window.send("Count." + KEYS["enter"])
        await person.window.wait_for("It begins.")
        await person.window.send(KEYS["ctrl-c"])
        stopped = await person.exchange()
        again = await person.say("Are you there?")
        await person.window.wait_for("Still here.")
        await person.window.wait_until(lambda: not person.window.shows("Ctrl-C stops"), "the prompt")
        await person.window.send(KEYS["ctrl-c"])
        await person.window.wait_for("ends the program")
        await person.window.send(KEYS["ctrl-c"])
        assert await person.window.ended() == Exit.DONE
        assert person.window.shows("Goodbye")
        assert person.window.shows("No DIAL Core: chat, calculator and the files of this folder work")
    assert (stopped.run.status, stopped.answer) == ("cancelled", "It begins.")
    assert again.answer == "Still here."


@pytest.mark.fault("console: Ctrl-C in a turn, twice at the prompt, and Ctrl-D")
@pytest.mark.system
async def test_ctrl_d_ends_the_program_and_the_session_continues_elsewhere(tmp_path: Path) -> None:
    async with openai_upstream(says("Blue."), says("I said blue.")) as upstream:
        async with console(tmp_path, **openai(upstream.url)) as person:
            await person.say("Which colour?")
            await person.window.wait_for("Blue.")
            await person.window.send(KEYS["ctrl-d"])
            assert await person.window.ended() == Exit.DONE
            assert person.window.shows(f"--resume {person.session_id}")
            session, seen = person.session_id, person.seen
        async with console(tmp_path, "--resume", session, **openai(upstream.url)) as person:
            person.seen |= seen
            assert person.window.shows("Which colour?")
            await person.say("What did you say?")
    assert [item["content"] for item in upstream.requests[-1].messages[1:]] == [
        "Which colour?", "Blue.", "What did you say?",
    ]  # fmt: skip
