"""What the commands print and keep: events of an answer, lines of several processes, files, ports in use."""

import io
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from task.cli.addresses import free_port, usable_port
from task.cli.ask import AnswerReader, ask
from task.cli.checks import PICTURES, Check
from task.cli.model_choice import ChosenModel, Rule
from task.cli.up import StartPlan, overview
from task.cli.workers import Place
from task.errors import InvalidRequest, SettingsError
from task.runs.events import Attached, RunError, RunEvent, RunFinished, RunText, StageClosed, StageOpened, StageText

END = RunFinished("finished", "", None, None, "stop")


def failed(message: str) -> RunError:
    return RunError({"message": message})


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}]}).encode()


def stage(index: int, **fields: Any) -> bytes:
    return chunk({"custom_content": {"stages": [{"index": index, "status": None, **fields}]}})


@pytest.mark.fault("ask: no question, or one of its own beside the demo's")
@pytest.mark.parametrize(("text", "demo", "reason"), [(" ", False, "try `ask "), ("Hi", True, "leave yours out")])
def test_a_missing_or_a_second_question_is_refused_with_what_to_do(text: str, demo: bool, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason):
        ask(text, demo=demo, endpoint="http://127.0.0.1:9")


async def events(*payloads: bytes) -> list[RunEvent]:
    async def arriving() -> AsyncGenerator[bytes]:
        for payload in payloads:
            yield payload

    return [event async for event in AnswerReader().events(arriving())]


async def test_text_stages_and_attachments_arrive_in_order() -> None:
    received = await events(
        chunk({"role": "assistant"}),
        stage(0, name="calculator: 1+1"),
        stage(0, content="2"),
        stage(0, name=" [0.1s]"),
        stage(0, status="completed"),
        chunk({"content": "It is 2."}),
        chunk({"custom_content": {"attachments": [{"index": 0, "type": "image/png", "url": "files/b/x.png"}]}}),
        chunk(finish="stop"),
        b'{"choices": [], "usage": {"prompt_tokens": 1}}',
        b"[DONE]",
    )
    assert received == [
        StageOpened(0, None, "calculator: 1+1"),
        StageText(0, "2"),
        StageClosed(0, "calculator: 1+1 [0.1s]", "completed"),
        RunText("It is 2."),
        Attached(None, {"type": "image/png", "url": "files/b/x.png"}),
        END,
    ]


async def test_the_terminal_shows_no_tags_of_citations() -> None:
    [text, _] = await events(
        chunk({"content": 'So [1]<cit id="c1" data-id="c1"></cit>.'}), chunk(finish="stop"), b"[DONE]"
    )
    assert text == RunText("So [1].")


async def test_an_error_event_ends_the_answer_with_its_display_message() -> None:
    received = await events(
        chunk({"content": "Partly"}),
        b'{"error": {"message": "500 from x", "display_message": "Try again."}}',
        b"[DONE]",
    )
    assert received == [RunText("Partly"), failed("Try again.")]


async def test_an_answer_without_its_end_is_a_failure() -> None:
    assert (await events(chunk({"content": "Half"})))[-1] == failed("The answer was interrupted before its end.")
    assert await events(b"<html>") == [failed("The response is not a DIAL answer.")]


def test_when_nobody_reads_the_lines_the_process_ends_quietly() -> None:
    code = (
        "import signal, sys\n"
        "from task.cli.up import LogConsole\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "console = LogConsole()\n"
        "while True: console.print('line')\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert writer.stdout is not None
    assert writer.stdout.readline() == b"line\n"
    writer.stdout.close()
    assert writer.stderr is not None
    assert writer.stderr.read() == b""
    writer.stderr.close()
    assert writer.wait(10) == 7


def printed(*, page: bool, rule: Rule = "demo", checks: Sequence[Check] = ()) -> list[str]:
    model = ChosenModel(rule, "scripted-demo", "no other was found")
    plan = StartPlan("http://127.0.0.1:5030", "http://127.0.0.1:8080", model, {}, [], page, None)
    table = overview(plan, ["calculator"], 1.0, checks=checks)
    paper = io.StringIO()
    Console(width=120, file=paper).print(table)
    return [" ".join(line.replace("│", " ").split()) for line in paper.getvalue().splitlines()]


@pytest.mark.fault("model: a DIAL_ENDPOINT where nothing answers")
@pytest.mark.fault("image: there is no image deployment")
def test_what_is_wrong_with_core_or_the_model_is_a_warning_with_its_fix() -> None:
    away = Check("core", "bad", "http://core:1 does not answer", "Correct DIAL_ENDPOINT.")
    lines = "\n".join(printed(page=False, rule="dial", checks=[away, Check("model", "ok", "x")]))
    assert "Warning http://core:1 does not answer. Correct DIAL_ENDPOINT." in lines
    assert "core-config --fragment" in lines
    missing = Check(PICTURES, "note", "Core does not list dall-e-3", "Add it.")
    lines = "\n".join(printed(page=False, rule="dial", checks=[missing]))
    assert "Warning Core does not list dall-e-3. Add it." in lines
    lines = "\n".join(printed(page=False, rule="dial", checks=[Check("deployments", "ok", "general-purpose-agent")]))
    assert ("Warning" in lines, "Needed" in lines) == (False, False)


@pytest.mark.fault("start: a port in use")
def test_a_port_in_use_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SettingsError) as caught:
            usable_port("127.0.0.1", port, "--port", "AGENT_PORT")
    text = f"Port {port} is in use by another process; choose another with --port or AGENT_PORT."
    assert str(caught.value) == text
    usable_port("127.0.0.1", free_port("127.0.0.1"), "--port", "AGENT_PORT")
    with pytest.raises(SettingsError, match=r"Nothing can listen on 192\.0\.2\.1"):  # another machine's
        usable_port("192.0.2.1", 5030, "--port", "AGENT_PORT")


def test_a_worker_counts_while_its_process_is_alive(tmp_path: Path) -> None:
    one, other = (Place(number, 2, tmp_path) for number in (1, 2))
    assert (one.ready(), one.joined(os.getpid())) == ((0, 2), False)
    one.join()
    assert (other.ready(), one.joined(os.getpid()), other.joined(os.getpid())) == ((1, 2), True, False)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "2").write_text(str(ended.pid))
    assert one.ready() == (1, 2)


def test_one_that_takes_the_place_of_another_removes_its_gauges_alone(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("77")
    for name in ("gauge_livesum_77.db", "gauge_livesum_78.db", "counter_77.db"):
        (tmp_path / name).touch()
    Place(1, 2, tmp_path).join()
    assert {file.name for file in tmp_path.glob("*.db")} == {"gauge_livesum_78.db", "counter_77.db"}
