"""A real terminal with a command in it: a window of tmux, with the interface of `tests.support.terminal`."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.terminal import SECONDS, Window

KEPT_LINES = "20000"
BETWEEN_LOOKS = 0.1  # tmux announces nothing to programs


class TmuxWindow(Window):
    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._shown = ""

    def text(self) -> str:
        return self._shown

    async def change(self) -> None:
        await asyncio.sleep(BETWEEN_LOOKS)
        self._shown = (await self._tmux("capture-pane", "-p", "-S", "-")).rstrip()

    async def send(self, text: str) -> None:
        keys = text.encode().hex(" ").split()
        await self._tmux("send-keys", "-H", *keys)

    async def resize(self, columns: int, rows: int) -> None:
        await self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    async def kill(self) -> None:
        os.killpg(int(await self._tmux("display-message", "-p", "#{pane_pid}")), signal.SIGKILL)

    async def start(self, command: Sequence[str], folder: Path, columns: int, rows: int) -> None:
        size = ("-x", str(columns), "-y", str(rows), "-c", str(folder))
        kept = ("set-option", "-g", "history-limit", KEPT_LINES, ";", "set-option", "-g", "remain-on-exit", "on", ";")
        await self._tmux("-f", "/dev/null", *kept, "new-session", "-d", *size, "--", *command)

    async def stop(self) -> None:
        await self._tmux("kill-server")

    async def _tmux(self, *arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            "tmux", "-S", str(self._socket), *arguments,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, errors = await asyncio.wait_for(process.communicate(), SECONDS)
        assert process.returncode == 0, errors.decode()
        return out.decode()


@asynccontextmanager
async def tmux(
    command: Sequence[str | Path], environ: Mapping[str, str], folder: Path, *, columns: int = 100, rows: int = 30
) -> AsyncGenerator[TmuxWindow]:
    """Run a command in a window of a server of its own; both end with the block."""
    variables = [f"{name}={value}" for name, value in {"LANG": "C.UTF-8", **environ}.items()]
    with tempfile.TemporaryDirectory() as short:  # a socket's path has a hundred characters at most
        window = TmuxWindow(Path(short) / "tmux")
        whole = ["env", "-i", "TERM=screen-256color", *variables, *map(str, command)]
        await window.start(whole, folder, columns, rows)
        try:
            yield window
        finally:
            await window.stop()
