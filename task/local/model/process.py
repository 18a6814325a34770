"""Keep the embedded model's process running: started when its weights are here, restarted when it dies or hangs."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp

from task.errors import ProviderError
from task.llm.transport import new_session
from task.local.model import server
from task.local.model.chat_model import Endpoint, Line, LocalChatModel
from task.local.model.weights import EmbeddedModel
from task.processes import Child, Program, Restarts, answers, ending

POLL_SECONDS = 1.0
LOADING = "The local model is being loaded"
MISSING = "Waiting for the local model's weights"
NOT_HERE = "The local model is not on this machine: `dial-agent model pull` downloads it."
NO_START = "The local model's process does not start; `dial-agent doctor` finds out why."


class ModelProcess:
    """The process of one embedded model, kept running between entering and leaving."""

    def __init__(self, model: EmbeddedModel, log: Callable[[str], None]) -> None:
        self._model = model
        self._log = log
        self._key = secrets.token_urlsafe(24)
        self._ready = asyncio.Event()
        self._next = asyncio.Event()
        self._address = ""
        self._output: deque[str] = deque(maxlen=5)
        self._process: Child | None = None

    async def __aenter__(self) -> ModelProcess:
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._keeper.cancel()
        await asyncio.wait({self._keeper})

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def endpoint(self) -> AsyncGenerator[str | Endpoint]:
        """What is waited for, in words, whenever that changes, and in the end the address.

        Raises:
            ProviderError: the weights are missing and not being downloaded, or the process does not start.
        """
        patience, reported, since = self._model.patience, "", time.monotonic()
        while not self._ready.is_set():
            reason = await asyncio.to_thread(self._reason_to_wait)
            if reason != reported:
                reported, since = reason, time.monotonic()
                yield reason
            waited = time.monotonic() - since
            if reason == MISSING and waited >= patience.appear:
                raise ProviderError(NOT_HERE, code="not_downloaded", display_message=NOT_HERE)
            if reason == LOADING and waited >= patience.load:
                last = "".join(f": {line}" for line in list(self._output)[-1:])
                raise ProviderError(NO_START, code="not_started", text=f"{NO_START}{last}", display_message=NO_START)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._ready.wait()
        yield Endpoint(self._address, self._key)

    def _reason_to_wait(self) -> str:
        if self._model.found() is not None:
            return LOADING
        percent = self._model.percent_downloaded()
        return MISSING if percent is None else f"The local model is being downloaded: {percent // 10 * 10} %"

    async def started(self) -> None:
        """Wait until the process has become ready for the first time, or again."""
        await self._next.wait()

    async def _keep(self) -> None:
        patience, failures = self._model.patience, 0
        restarts = Restarts(patience.first_pause, patience.longest_pause, settled_seconds=patience.settled)
        while True:
            if (file := self._model.found()) is None:
                await asyncio.sleep(POLL_SECONDS)  # another process downloads it now or later
                continue
            started = time.monotonic()
            try:
                end = ending(await self._run(file))
            except OSError as error:  # the file has just been removed, or there is no memory for a process
                end = f"could not be started ({error.strerror})"
            failures = 1 if time.monotonic() - started > restarts.settled_seconds else failures + 1
            pause = restarts.pause(failures)
            self._log(f"the local model's process {end}; restarting it in {pause:g} s")
            await asyncio.sleep(pause)

    async def _run(self, file: Path) -> int:
        environment = {"PATH": os.defpath, server.KEY_VARIABLE: self._key}
        command = (*self._model.program, *self._model.arguments(file))
        child = await Child.start(Program("local model", command, environment, held=True), self._received)
        self._process = child
        probing = asyncio.create_task(self._probe(child))
        try:
            return await asyncio.shield(child.exited)
        finally:
            self._ready.clear()
            probing.cancel()
            child.kill()
            await asyncio.wait({child.exited})

    def _received(self, _: str, line: str) -> None:
        line = line.strip()
        if line.startswith(server.READY):
            self._address = line.removeprefix(server.READY)
            self._ready.set()
            self._next.set()
            self._next = asyncio.Event()
        elif line:
            self._output.append(line)

    async def _probe(self, child: Child) -> None:
        # Kill the process when it fails to answer three times in a row: a process that hangs does not recover
        failures = 0
        limit = aiohttp.ClientTimeout(total=self._model.patience.probe)
        async with aiohttp.ClientSession(timeout=limit, cookie_jar=aiohttp.DummyCookieJar()) as session:
            while failures < 3:
                await asyncio.sleep(self._model.patience.probe)
                if self._ready.is_set():
                    failures = 0 if await answers(session, f"{self._address}/health") else failures + 1
        self._log("the local model's process does not answer and is killed")
        child.kill()


@asynccontextmanager
async def running(
    model: EmbeddedModel, log: Callable[[str], None]
) -> AsyncGenerator[tuple[LocalChatModel, ModelProcess]]:
    """The model, and the process in which it runs."""
    async with new_session() as session, ModelProcess(model, log) as process:
        chat = LocalChatModel(
            session,
            process.endpoint,
            model.name,
            context=model.context,
            answer_tokens=model.answer_tokens,
            reply_bias=model.reply_bias,
            line=Line(model.queue),
        )
        yield chat, process


async def keep_warm(model: EmbeddedModel, chat: LocalChatModel, process: ModelProcess) -> None:
    """Warm up each process that starts; it knows the common beginning of conversations only from a saved state."""
    while True:
        await process.started()
        with suppress(ProviderError, OSError):  # the next question reports whatever it is
            await save_state(model, chat)


async def save_state(model: EmbeddedModel, chat: LocalChatModel) -> Path | None:
    """Warm the model up; the file of its saved state, which replaces all others, or None when it wrote none."""
    file = model.found()
    if file is None:
        return None
    state = model.state(file)
    new = state.with_suffix(".new")  # a whole file or none: processes may start and die at any time
    if not await chat.warm_up(new.name):
        return None
    new.replace(state)
    for other in model.store.states(model.name):
        if other != state:
            other.unlink(missing_ok=True)
    return state
