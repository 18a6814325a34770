"""Read a page's text in a sandboxed process: what takes too much time or memory, or attacks its reader, ends there."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mcp_servers.duckduckgo.decoding import Unreadable
from mcp_servers.duckduckgo.text import page_text

if sys.platform != "win32":  # where a reader runs without these limits
    import resource

PARSED = frozenset(
    {"text/html", "application/xhtml+xml", "application/pdf"}
)  # by libraries; other text is only decoded
AT_ONCE = 2
_ROOT = Path(__file__).parents[2]
_ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": "/usr/local/bin:/usr/bin:/bin"}  # nothing of the server's own
_SECONDS_TO_DIE = 5.0


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """Limits of reading one page; memory is address space, `characters` those of the text."""

    seconds: float = 20.0
    memory_bytes: int = 768 * 2**20
    characters: int = 2 * 2**20


@dataclass(frozen=True, slots=True)
class PageText:
    """Title (may be empty) and readable text; `cut` that there is more of it."""

    title: str
    text: str
    cut: bool


class PageReader:
    """Reads HTML and PDF in a process for each page, few at a time, and other text in this one."""

    def __init__(self, limits: ReadingLimits | None = None) -> None:
        self._limits = limits or ReadingLimits()
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def read(self, body: bytes, kind: str, charset: str | None) -> PageText:
        """The text of a body of that media type.

        Raises:
            Unreadable: it is damaged, or takes more time or memory than a page may.
        """
        if kind not in PARSED:
            return await asyncio.to_thread(_read, body, kind, charset, self._limits.characters)
        async with self._slots:
            process = await _start(self._limits)
            try:
                async with asyncio.timeout(self._limits.seconds):
                    return await _answer(process, [kind, charset], body)
            except TimeoutError as error:
                raise Unreadable(f"reading it takes longer than {self._limits.seconds:g} s") from error
            finally:
                await _end(process)


def _read(body: bytes, kind: str, charset: str | None, characters: int) -> PageText:
    title, text = page_text(body, kind, charset)
    return PageText(title, text[:characters], len(text) > characters)


async def _start(limits: ReadingLimits) -> Process:
    # In a group of its own: a terminal's interrupt does not reach it.
    return await asyncio.create_subprocess_exec(
        *_command(limits), stdin=PIPE, stdout=PIPE, stderr=DEVNULL, cwd="/", env=_ENVIRONMENT, start_new_session=True
    )


def _command(limits: ReadingLimits) -> list[str]:
    """A reader in the sandbox: it may read the installation and nothing else; without one it has its limits only."""
    numbers = map(str, (limits.memory_bytes, int(limits.seconds) + 1, limits.characters))
    reader = [sys.executable, "-P", "-m", __name__, *numbers]
    if sys.platform != "linux":
        return reader
    policy = {
        "workdir": "/",
        "read_only": [sys.prefix, sys.base_prefix, str(_ROOT / "mcp_servers")],
        "environment": _ENVIRONMENT,
        "limits": {"memory": limits.memory_bytes, "file_bytes": None},
        "allow_unsafe": True,
    }
    launcher = str(_ROOT / "mcp_servers" / "sandbox" / "__main__.py")
    return [sys.executable, "-I", "-S", launcher, "--policy", json.dumps(policy), "--", *reader]


async def _answer(process: Process, head: list[str | None], body: bytes) -> PageText:
    assert process.stdin is not None
    assert process.stdout is not None
    answer = b""
    with suppress(ConnectionError):  # it has died
        process.stdin.write(json.dumps(head).encode() + b"\n" + body)
        await process.stdin.drain()
        process.stdin.close()
        answer = await process.stdout.read()
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise Unreadable("reading it takes too much memory, or it is damaged") from error
    if isinstance(found, str):
        raise Unreadable(f"it could not be read ({found})")
    return PageText(*found)


async def _end(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.stdin is not None
    async with asyncio.timeout(_SECONDS_TO_DIE):
        await process.communicate()
        process.stdin.close()
        with suppress(ConnectionError):  # it died before it had read all
            await process.stdin.wait_closed()


def main(memory_bytes: int, seconds: int, characters: int) -> None:
    """Read one page from standard input; write what was found, or the kind of error, as JSON."""
    _limit(memory_bytes, seconds)
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not get into the answer
    kind, charset = json.loads(sys.stdin.buffer.readline())
    try:
        page = _read(sys.stdin.buffer.read(), kind, charset, characters)
        found: object = [page.title, page.text, page.cut]
    except Exception as error:
        found = type(error).__name__
    with answer:
        json.dump(found, answer)


def _limit(memory_bytes: int, seconds: int) -> None:
    if sys.platform == "win32":
        return
    limits = {resource.RLIMIT_CPU: seconds, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    if sys.platform != "darwin":  # macOS refuses it
        limits[resource.RLIMIT_AS] = memory_bytes
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
