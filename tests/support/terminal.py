"""A terminal with a command in it: a pty, an emulator that draws what the command writes, and keys to press.

async with terminal([sys.executable, "-m", "task", "chat"], environment(home), home, columns=60) as window:
    await window.wait_for("Type /help")          on the screen or scrolled out of it, however it is wrapped
    await window.send("Hello\r")                 keys; `KEYS` has the names of some
    window.text()                                the lines in view and those above them
    await window.resize(40, 20)
    assert await window.ended() == 0             the exit code
    window.foreign_sequences()                   control sequences that a text must not bring into a terminal
"""

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import struct
import sys
import termios
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pyte
from pyte.screens import HistoryScreen

SECONDS = 80  # generous: the machine may be busy with other tests; below the limit of pytest, which ends the worker
KEYS = {"enter": "\r", "ctrl-c": "\x03", "ctrl-d": "\x04", "tab": "\t", "up": "\x1b[A"}
# The terminal becomes the controlling one of the command's session, so that closing it hangs the command up.
IN_CONTROL = "import fcntl,os,sys,termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
SEQUENCE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, links, the clipboard
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC: pictures, settings
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI
    r"|\x1b.?|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]",
    re.DOTALL,
)
# Colours, moving the cursor, erasing, and the modes that a line editor switches.
OWN = re.compile(r"\x1b\[(?:[0-9;]*[mABCDGHJK]|6n|\?(?:1|7|12|25|2004|2026)[hl])|\x1b[=>]|\x08|\x0f")


class Drawn(HistoryScreen):
    """The emulator's screen, which answers the command's questions about the cursor."""

    def __init__(self, columns: int, rows: int, answer: Callable[[bytes], None]) -> None:
        super().__init__(columns, rows, history=20_000, ratio=0.5)
        self._answer = answer

    def write_process_input(self, data: str) -> None:
        self._answer(data.encode())


class Terminal:
    """The emulated terminal; `transcript` are the bytes that the command wrote."""

    def __init__(self, master: int, process: asyncio.subprocess.Process, columns: int, rows: int) -> None:
        self.process = process
        self.transcript = bytearray()
        self._master: int | None = master
        self._typed = bytearray()
        self._changed = asyncio.Event()
        self._drawn = Drawn(columns, rows, self._typed_by_itself)
        self._stream = pyte.ByteStream(self._drawn)
        os.set_blocking(master, False)
        asyncio.get_running_loop().add_reader(master, self._read)

    def text(self) -> str:
        """Everything drawn so far: what has scrolled away, then what is in view."""
        columns, above = range(self._drawn.columns), self._drawn.history.top
        lines = ["".join(line[place].data for place in columns) for line in above]
        return "\n".join(line.rstrip() for line in [*lines, *self._drawn.display]).rstrip()

    def shows(self, text: str, times: int = 1) -> bool:
        """Whether a text was drawn, wherever its lines are broken."""
        return "".join(self.text().split()).count("".join(text.split())) >= times

    async def wait_for(self, text: str, times: int = 1) -> None:
        await self.wait_until(lambda: self.shows(text, times), f"{text!r} ({times}x)")

    async def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until a condition on what is drawn holds; a failure shows the screen."""
        try:
            async with asyncio.timeout(SECONDS):
                while not holds():
                    await self.change()
        except TimeoutError:
            raise AssertionError(f"Not within {SECONDS} s: {what}. The terminal shows:\n{self.text()}") from None
        except AssertionError as error:
            raise AssertionError(f"{error} Not shown: {what}. The terminal shows:\n{self.text()}") from None

    async def change(self) -> None:
        """Wait until something else may be drawn.

        Raises:
            AssertionError: the command has ended, so nothing will.
        """
        assert self._master is not None, "The command has ended."
        self._changed.clear()
        await self._changed.wait()

    async def send(self, text: str) -> None:
        """Press keys; returns once the terminal has taken all of them."""
        self._type(text.encode())
        async with asyncio.timeout(SECONDS):
            while self._typed and self._master is not None:
                await self.change()

    async def paste(self, text: str) -> None:
        """Text as a terminal sends what was copied elsewhere: in brackets."""
        await self.send(f"\x1b[200~{text}\x1b[201~")

    async def resize(self, columns: int, rows: int) -> None:
        assert self._master is not None
        self._drawn.resize(rows, columns)
        _set_size(self._master, columns, rows)

    def hang_up(self) -> None:
        """Close the terminal's window, or lose the connection to it."""
        master, self._master = self._master, None
        if master is not None:
            asyncio.get_running_loop().remove_reader(master)
            asyncio.get_running_loop().remove_writer(master)
            os.close(master)
        self._changed.set()

    async def kill(self) -> None:
        """End the command, and what it started in its group, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await asyncio.wait_for(self.process.wait(), SECONDS)

    async def ended(self) -> int:
        """The command's exit code, once it has ended and all it wrote is drawn."""
        try:
            async with asyncio.timeout(SECONDS):
                code = await self.process.wait()
                while self._master is not None:
                    await self.change()
        except TimeoutError:
            running = "The command" if self.process.returncode is None else "What the command has started"
            raise AssertionError(f"{running} is there after {SECONDS} s. It shows:\n{self.text()}") from None
        return code

    def foreign_sequences(self) -> list[str]:
        """Control sequences of the transcript that a line editor has no use for, such as titles or the clipboard."""
        found = SEQUENCE.findall(self.transcript.decode(errors="replace"))
        return [sequence for sequence in found if not OWN.fullmatch(sequence)]

    def _read(self) -> None:
        assert self._master is not None
        try:
            data = os.read(self._master, 65_536)
        except BlockingIOError:
            return
        except OSError:  # how Linux reports that the last process has closed its side
            data = b""
        if not data:
            self.hang_up()
            return
        self.transcript += data
        self._stream.feed(data)
        self._changed.set()

    def _typed_by_itself(self, data: bytes) -> None:
        if self._master is not None:
            self._type(data)

    def _type(self, data: bytes) -> None:
        assert self._master is not None, f"The command has ended:\n{self.text()}"
        self._typed += data
        asyncio.get_running_loop().add_writer(self._master, self._write)

    def _write(self) -> None:
        assert self._master is not None
        with contextlib.suppress(BlockingIOError):
            del self._typed[: os.write(self._master, self._typed[:4096])]
        if not self._typed:
            asyncio.get_running_loop().remove_writer(self._master)
        self._changed.set()


def _set_size(terminal: int, columns: int, rows: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@asynccontextmanager
async def terminal(
    command: Sequence[str | Path], environ: Mapping[str, str], folder: Path, *, columns: int = 100, rows: int = 30
) -> AsyncGenerator[Terminal]:
    """Run a command in a terminal of its own; both end with the block."""
    master, slave = os.openpty()
    _set_size(slave, columns, rows)
    variables = {"TERM": "xterm-256color", "LANG": "C.UTF-8", **environ}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-ISc", IN_CONTROL, *command,
        cwd=folder, env=variables, start_new_session=True, stdin=slave, stdout=slave, stderr=slave,
    )  # fmt: skip
    os.close(slave)
    window = Terminal(master, process, columns, rows)
    try:
        yield window
    finally:
        window.hang_up()
        await window.kill()
