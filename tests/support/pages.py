"""A page of the documentation as somebody follows it: its commands and programs run, what they print compared."""

import asyncio
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from tests.support.ports import free_port
from tests.support.up import ROOT, environment

SECONDS = 120
BLOCK = re.compile(r"^(`{3,})(\w*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
OUTPUT = re.compile(r"\s*(?:[^\n`#|]*:\n\n)?```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
IDENTIFIER = re.compile(r"\b(code|trace|key|sess)_[0-9a-f]{8,}\b")
FILE = re.compile(r"# (\w+\.py)\n")
PORT = re.compile(r"\b(?:5030|8080|8050|8051)\b")
SERVER = re.compile(r"\b(make run|dial-agent up|dial-agent serve|python-interpreter|mcp_servers\.duckduckgo)\b")
LISTENS = {"dial-agent serve": "5030", "python-interpreter": "8050", "mcp_servers.duckduckgo": "8051"}
# What one block exports is there in the next, as in a terminal; `make run` installs nothing here.
START = """
[ ! -e .exported ] || . ./.exported
make() { [ "$*" = run ] && export -p > .exported && dial-agent up; }
"""
END = "\nexport -p > .exported\n"


@dataclass(frozen=True, slots=True)
class Block:
    """Commands or a program, and the output that the page states right below; there `…` and ids stand for anything."""

    page: str
    language: str
    text: str
    output: str | None

    @property
    def name(self) -> str:
        return self.text.partition("\n")[0]


def runnable(page: Path) -> list[Block]:
    """The blocks of a page that somebody can run, in their order."""
    text, name = page.read_text(encoding="utf-8"), str(page.relative_to(ROOT))
    return [
        Block(name, found[2], found[3], output[1] if (output := OUTPUT.match(text, found.end())) else None)
        for found in BLOCK.finditer(text)
        if found[2] in ("sh", "python")
    ]


def as_stated(output: str, stated: str) -> bool:
    """Whether the output is the stated one."""
    pattern = ".*".join(map(re.escape, IDENTIFIER.sub("…", stated.strip()).split("…")))
    return re.fullmatch(pattern, output.strip(), re.DOTALL) is not None


@dataclass
class Follower:
    """Somebody who runs the blocks of a page one after the other, in an empty folder of an empty home.

    A block that starts a server is ready with the server, which then stays until the next one. `replaced` has what
    stands for a text of the page, such as the address of a model. Ports and ids become those of this run.
    """

    home: Path
    page: list[Block]
    replaced: Mapping[str, str] = field(default_factory=dict[str, str])
    prelude: str = ""
    printed: str = ""
    server: asyncio.subprocess.Process | None = None

    def __post_init__(self) -> None:
        self.folder = self.home / "project"
        self.folder.mkdir(exist_ok=True)
        self._ports = {port: str(free_port()) for port in ("5030", "8080", "8050", "8051")}

    async def run(self, language: str, text: str) -> str:
        """What it prints; it must succeed. A program that begins with the name of a file is kept in it."""
        if language == "python":
            if file := FILE.match(text):
                (self.folder / file[1]).write_text(text, encoding="utf-8")
            program = self._here(f"{self.prelude}\n{text}")
            return await self._finished("bash", "-euc", f'{START}\nexec python -c "$0"', program)
        if SERVER.search(text):
            await self._serve(text)
            return ""
        return "".join([await self._finished("bash", "-euc", START + self._here(c) + END) for c in commands(text)])

    async def stop(self) -> None:
        """End the server as Ctrl-C does."""
        server, self.server = self.server, None
        if server is not None:
            os.killpg(server.pid, signal.SIGINT)
            assert await asyncio.wait_for(server.wait(), SECONDS) == 0

    def _here(self, text: str) -> str:
        for stated, here in self.replaced.items():
            text = text.replace(stated, here)
        text = PORT.sub(lambda found: self._ports[found[0]], text)
        return IDENTIFIER.sub(lambda found: self._identifier(found[0], found[1]), text)

    def _identifier(self, documented: str, kind: str) -> str:
        stated, seen = (
            [name for name in dict.fromkeys(found[0] for found in IDENTIFIER.finditer(text)) if name.startswith(kind)]
            for text in ("\n".join(block.text for block in self.page), self.printed)
        )
        return seen[stated.index(documented)]

    async def _finished(self, *command: str) -> str:
        process = await self._started(command, asyncio.subprocess.PIPE, asyncio.subprocess.PIPE)
        out, err = (text.decode() for text in await asyncio.wait_for(process.communicate(), SECONDS))
        assert process.returncode == 0, f"{command[-1]}\n{out}\n{err}"
        self.printed += out + err
        return out

    async def _serve(self, text: str) -> None:
        await self.stop()
        log = self.folder / "server.log"
        with log.open("wb") as file:
            self.server = await self._started(
                ("bash", "-euc", START + self._here(text)), file, asyncio.subprocess.STDOUT
            )
        async with asyncio.timeout(SECONDS):
            while not self._is_ready(text, log):
                assert self.server.returncode is None, log.read_text("utf-8")
                await asyncio.sleep(0.1)

    def _is_ready(self, text: str, log: Path) -> bool:
        found = SERVER.search(text)
        port = LISTENS.get(found[1]) if found else None
        if port is None:
            return "Ready in" in log.read_text("utf-8")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", int(self._ports[port]))) == 0

    async def _started(self, command: Sequence[str], out: int | IO[bytes], err: int) -> asyncio.subprocess.Process:
        environ = environment(
            self.home, AGENT_PORT=self._ports["5030"], AGENT_CORE_PORT=self._ports["8080"], TERM="dumb", COLUMNS="120"
        )
        environ["PATH"] = f"{Path(sys.executable).parent}:{environ['PATH']}"
        return await asyncio.create_subprocess_exec(
            *command, cwd=self.folder, env=environ, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip


def commands(text: str) -> Iterator[str]:
    """The commands of a block one by one, so that each can use the ids that an earlier one has printed."""
    if "<<" in text:  # the lines of a file
        yield text
        return
    waiting = ""
    for line in text.splitlines(keepends=True):
        waiting += line
        try:
            shlex.split(waiting, comments=True)
        except ValueError:  # an open quotation
            continue
        yield waiting
        waiting = ""


@asynccontextmanager
async def following(
    home: Path, page: list[Block], replaced: Mapping[str, str], prelude: str = ""
) -> AsyncGenerator[Follower]:
    """Somebody who follows the page; its last server ends with the block."""
    follower = Follower(home, page, replaced, prelude)
    try:
        yield follower
        await follower.stop()
    finally:
        if follower.server is not None and follower.server.returncode is None:
            os.killpg(follower.server.pid, signal.SIGKILL)
