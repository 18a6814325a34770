"""Keep the embedded model's process running: started when its weights are here, restarted when it dies or hangs."""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import aiohttp

from task.conversation.messages import Message
from task.errors import ProviderError
from task.llm.base import ChatModel, Delta, ModelOptions, ToolSchema, Waiting
from task.llm.chat_request import BASIC
from task.llm.openai import OpenAIChatModel
from task.llm.transport import Retries, new_session
from task.local.model.prompt import predicted_prefix
from task.local.model.server import KEY_VARIABLE, READY
from task.local.model.small_model import SmallModel
from task.local.model.weights import Weights, WeightStore
from task.processes import Child, Program, Restarts, answers, ending

PROGRAM = (sys.executable, str(Path(__file__).with_name("server.py")))
PROFILE = replace(BASIC, streams_usage=True, refused=frozenset({"reasoning_effort", "top_logprobs"}))
PAUSES = (0.3, 2.0)  # seconds before the retries: what restarts the process must have noticed that it died
POLL_SECONDS = 1.0
LOADING = "The local model is being loaded"
MISSING = "Waiting for the local model's weights"
NOT_HERE = "The local model is not on this machine: `dial-agent model pull` downloads it."
NO_START = "The local model's process does not start; `dial-agent doctor` finds out why."


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model under its own `name`: known `weights` in the `store`, or a `file` of the user's.

    `context` and `answer_tokens` are tokens, `queue` is how many requests may wait; `threads` 0 takes all cores. A
    request waits for the weights to appear and the model to load; the process has to answer a probe.
    """

    name: str
    title: str
    store: WeightStore
    weights: Weights | None = None
    file: Path | None = None
    context: int = 8192
    answer_tokens: int = 1024
    threads: int = 0
    queue: int = 8
    program: tuple[str, ...] = PROGRAM
    appear_seconds: float = 10
    load_seconds: float = 180
    probe_seconds: float = 10
    restarts: Restarts = field(default_factory=Restarts)

    def found(self) -> Path | None:
        """The file to load; None while it, or the program that runs it, is missing."""
        if not self.store.runtime.is_dir():
            return None
        return self.file if self.weights is None else self.store.found(self.weights)


class ModelProcess:
    """The process of one embedded model, kept running between entering and leaving; a chat model itself, which waits
    for the process and then asks its server.

    `chat` is what others ask. Each process that starts reads the common beginning of conversations before the first
    question comes.
    """

    def __init__(self, model: EmbeddedModel, log: Callable[[str], None]) -> None:
        bias = model.weights.reply_bias if model.weights else 0.0
        self.name = model.name
        self.chat = SmallModel(self, model.name, model.context, model.answer_tokens, bias, PAUSES, queue=model.queue)
        self._model, self._log = model, log
        self._key = secrets.token_urlsafe(24)
        self._ready = asyncio.Event()
        self._address = ""
        self._last_line = ""  # that the process has printed
        self._child: Child | None = None

    async def __aenter__(self) -> Self:
        self._session = new_session()
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._keeper.cancel()
        await asyncio.wait({self._keeper})
        await self._session.close()

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        reported, since = "", time.monotonic()
        while not self._ready.is_set():
            reason = self._reason_to_wait()
            if reason != reported:
                reported, since = reason, time.monotonic()
                yield Waiting(reason)
            waited = time.monotonic() - since
            if reason == MISSING and waited >= self._model.appear_seconds:
                raise ProviderError(NOT_HERE, code="not_downloaded", display_message=NOT_HERE)
            if reason == LOADING and waited >= self._model.load_seconds:
                text = f"{NO_START} {self._last_line}".rstrip()
                raise ProviderError(NO_START, code="not_started", text=text, display_message=NO_START)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ready.wait(), POLL_SECONDS)
        server = server_model(self._session, self._address, self._key, self.name)
        async with aclosing(server.stream(messages, tools, options)) as deltas:
            async for delta in deltas:
                yield delta

    def _reason_to_wait(self) -> str:
        weights, store = self._model.weights, self._model.store
        if self._model.found() is not None:
            return LOADING
        if weights is None:
            return MISSING
        with store.lock(weights.name, wait=False) as idle:
            percent = 100 * store.done_bytes(weights) // weights.size
            return MISSING if idle else f"The local model is being downloaded: {percent // 10 * 10} %"

    async def _keep(self) -> None:
        restarts, failures = self._model.restarts, 0
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
        model = self._model
        sizes = (model.context, model.threads or os.cpu_count() or 1)
        command = (*model.program, str(file), str(model.store.runtime), *map(str, sizes))

        def received(_: str, line: str) -> None:
            if line.startswith(READY):
                self._address = line.removeprefix(READY).strip()
                self._ready.set()
            elif line.strip():
                self._last_line = line.strip()

        environment = {"PATH": os.defpath, KEY_VARIABLE: self._key}
        child = self._child = await Child.start(Program("local model", command, environment, held=True), received)
        warming = asyncio.create_task(self._warm_up())
        limit = aiohttp.ClientTimeout(total=3 * model.probe_seconds)
        try:
            async with aiohttp.ClientSession(timeout=limit, cookie_jar=aiohttp.DummyCookieJar()) as session:
                while child.alive and (not self._ready.is_set() or await answers(session, f"{self._address}/health")):
                    await asyncio.wait({child.exited}, timeout=model.probe_seconds)
            if child.alive:  # a process that hangs does not recover
                self._log("the local model's process does not answer and is killed")
        finally:
            self._ready.clear()
            warming.cancel()
            child.kill()
            await asyncio.wait({child.exited})
        return child.exited.result()

    async def _warm_up(self) -> None:
        await self._ready.wait()
        # Without it the first question only waits longer, and reports what is wrong with the model.
        with suppress(ProviderError):
            async for _ in self.chat.stream([predicted_prefix()], (), ModelOptions(max_tokens=1)):
                pass


def server_model(session: aiohttp.ClientSession, address: str, key: str, name: str) -> ChatModel:
    """The model of llama.cpp's server at this address, asked once for each request."""
    return OpenAIChatModel(session, f"{address}/v1", key, name, PROFILE, retries=Retries(attempts=1))
