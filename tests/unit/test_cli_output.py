"""What the commands print: lines of several processes, the table of what runs, and ports in use."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys

import pytest
from rich.console import Console

from task.commands.addresses import free_port, holder_of, usable_port
from task.commands.model_choice import ChosenModel
from task.commands.up_output import PrefixedLines, overview
from task.errors import SettingsError


def test_lines_are_distinguished_without_colour_and_without_being_cut() -> None:
    out = io.StringIO()
    lines = PrefixedLines(Console(file=out, width=40), ["core", "agent"])
    lines("core", "[bold]not markup[/bold] " + "x" * 60)
    lines("agent", "\x1b[31mred\x1b[0m")
    assert out.getvalue().splitlines() == [f"core  │ [bold]not markup[/bold] {'x' * 60}", "agent │ red"]


def test_when_nobody_reads_the_lines_the_process_ends_quietly() -> None:
    code = (
        "import signal, sys\n"
        "from task.commands.up_output import LogConsole\n"
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


def printed(*, page: bool) -> list[str]:
    model = ChosenModel("demo", "scripted-demo", "no other was found")
    table = overview("http://127.0.0.1:5030", "http://127.0.0.1:8080", model, ["calculator"], 1.0, page=page)
    paper = io.StringIO()
    Console(width=120, file=paper).print(table)
    return [" ".join(line.replace("│", " ").split()) for line in paper.getvalue().splitlines()]


def test_the_first_row_is_the_address_of_the_web_page() -> None:
    assert printed(page=True)[2] == "Web page http://127.0.0.1:5030/"


def test_a_web_page_that_is_switched_off_is_not_listed() -> None:
    lines = printed(page=False)
    assert lines[2] == "Agent http://127.0.0.1:5030"
    assert not any("Web page" in line for line in lines)


def test_a_port_in_use_names_the_process_and_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SettingsError) as caught:
            usable_port("127.0.0.1", port, "--port", "AGENT_PORT")
    message = str(caught.value)
    assert message.startswith(f"Port {port} is in use by ")
    assert f"(process {os.getpid()})" in message
    assert message.endswith("; choose another with --port or AGENT_PORT.")


def test_a_free_port_has_no_holder() -> None:
    port = free_port("127.0.0.1")
    usable_port("127.0.0.1", port, "--port", "AGENT_PORT")
    assert holder_of(port) is None


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"Nothing can listen on 192\.0\.2\.1"):
        usable_port("192.0.2.1", 5030, "--port", "AGENT_PORT")
