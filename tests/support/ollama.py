"""A test's hold on `tests.support.ollama_peer`: start and kill the process, script its model, see what it received.

    async with ollama_peer(wants("calculator", expression="25*47"), says("1175")) as peer:
        peer.url                        its address; `peer.kill()` and `peer.start()` as often as you like
        await peer.script(says("…"))    further answers, `models={name: {…} | None}` and `key` beside them
        await peer.seen(requests=2)     the requests, prompts, loads and stopped answers, once there are so many

An answer is a `Reply`, or the wire's own parts: `answer({"text": "half"}, {"error": "…"}, bytes_per_write=1)`.
"""

import base64
import json
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from task.llm.scripted import Reply
from tests.support.mcp_processes import ServerProcess
from tests.support.parts import parts_of
from tests.support.ports import free_port
from tests.support.upstream import Received

MODEL = "test-model"
Scripted = Reply | dict[str, Any]


def answer(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An answer in the peer's own parts; `ids=False`, `buffered=True`, `bytes_per_write=1` change its look."""
    return {"parts": list(parts), **more}


def refusal(status: int, error: str) -> dict[str, Any]:
    return {"status": status, "error": error}


def raw(data: bytes) -> dict[str, Any]:
    """A part that is written as it is."""
    return {"raw": base64.b64encode(data).decode()}


@dataclass(frozen=True, slots=True)
class Seen:
    """What the peer has received: bodies and headers of chats, the prompts that its model read, `[model, context]` of
    each load, and the words after which an answer was stopped."""

    requests: list[dict[str, Any]]
    prompts: list[str]
    loads: list[list[Any]]
    stopped: list[int]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request["body"] for request in self.requests]


class OllamaPeer:
    def __init__(self, process: ServerProcess, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.url = f"http://127.0.0.1:{process.port}"
        self.start, self.kill = process.start, process.kill

    async def script(self, *answers: Scripted, reset: bool = False, **given: Any) -> None:
        """Further answers; `given` are the `models` by name (None: it is gone) and the `key` of the peer."""
        spoken = [item if isinstance(item, dict) else parts_of(item) for item in answers]
        body = {"answers": spoken, "reset": reset, **given}
        async with self._session.post(f"{self.url}/peer/script", json=body) as response:
            assert response.status == 200, await response.text()

    async def load(self, context: int, model: str = MODEL) -> None:
        """Have a model loaded, as somebody else's request would."""
        body = {"model": model, "messages": [], "options": {"num_ctx": context}}
        async with self._session.post(f"{self.url}/api/chat", json=body) as response:
            assert response.status == 200, await response.text()

    async def seen(self, **least: int) -> Seen:
        """What it has received, once each list has at least so many items."""
        async with self._session.get(f"{self.url}/peer/state", params=least) as response:
            assert response.status == 200, f"not within 30 s: {least}"
            return Seen(**await response.json())


@contextmanager
def ollama_process(*, started: bool = True) -> Generator[ServerProcess]:
    port = free_port()
    process = ServerProcess(port, [sys.executable, "-m", "tests.support.ollama_peer", str(port)], {})
    try:
        if started:
            process.start()
        yield process
    finally:
        process.kill()


@asynccontextmanager
async def scripted_peer(process: ServerProcess, *answers: Scripted, **more: Any) -> AsyncGenerator[OllamaPeer]:
    """A running process, as if it had just been started with these answers; `more` as `script` takes it."""
    async with aiohttp.ClientSession() as session:
        peer = OllamaPeer(process, session)
        await peer.script(*answers, **more, reset=True)
        yield peer


@asynccontextmanager
async def ollama_peer(*answers: Scripted, **more: Any) -> AsyncGenerator[OllamaPeer]:
    """A process of its own with these answers; `more` as `script` takes it."""
    with ollama_process() as process:
        async with scripted_peer(process, *answers, **more) as peer:
            yield peer


def in_openais_shape(request: Mapping[str, Any]) -> Received:
    """What the peer received, as OpenAI's API would have: arguments as text, and no empty content beside calls."""
    body = {**request["body"], "messages": [_openai_message(item) for item in request["body"]["messages"]]}
    return Received("/api/chat", {}, request["headers"], body)


def _openai_message(message: Mapping[str, Any]) -> dict[str, Any]:
    wire = {"name" if name == "tool_name" else name: value for name, value in message.items()}
    if pictures := wire.pop("images", None):
        urls = [f"data:image/png;base64,{picture}" for picture in pictures]
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        wire["content"] = [{"type": "text", "text": wire["content"]}, *parts]
    if "tool_calls" in wire:
        wire["tool_calls"] = [_openai_call(call["id"], **call["function"]) for call in wire["tool_calls"]]
        if not wire["content"]:
            del wire["content"]
    return wire


def _openai_call(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
