"""The model providers of the matrix: a peer of each in a process of its own, and what makes the product use it."""

import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import aiohttp

from task.llm.scripted import Reply
from tests.support import dapr, ollama
from tests.support.mcp_processes import ServerProcess
from tests.support.parts import parts_of
from tests.support.ports import free_port
from tests.support.upstream import Received

CONTEXT = 16_384  # of Ollama's model
MODEL = "test-model"


class Peer(Protocol):
    """A provider's process: what its model answers next, and the requests it has received."""

    url: str

    async def script(self, *answers: Reply, reset: bool = False) -> None: ...
    async def seen(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Backend:
    """One kind of provider: its name in the settings, what it speaks, and the settings that lead to its peer.

    `canonical` is a request in OpenAI's shape; `sees`: it takes pictures; `streams`: an answer comes piece by piece.
    """

    name: str
    wire: str
    peer: Callable[[], AbstractAsyncContextManager[Any]]
    settings: Callable[[Any], Mapping[str, str]]
    canonical: Callable[[Mapping[str, Any]], Received]
    sees: bool = True
    streams: bool = True
    models: Mapping[str, Any] = field(default_factory=dict[str, Any])

    async def reset(self, peer: Any) -> None:
        """The peer as if it had just been started."""
        await peer.script(reset=True, **self.models)
        if self.name == "ollama":  # what is shown while a model is loaded is Ollama's alone
            await peer.load(CONTEXT)

    async def requests(self, peer: Any) -> list[Received]:
        return [self.canonical(request) for request in (await peer.seen()).requests]


class UpstreamPeer:
    """`tests.support.upstream_peer` as the holds on the other peers are."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self._session = url, session

    async def script(self, *answers: Reply, reset: bool = False) -> None:
        body = {"answers": [parts_of(answer) for answer in answers], "reset": reset}
        async with self._session.post(f"{self.url}/peer/script", json=body) as response:
            assert response.status == 200, await response.text()

    async def seen(self) -> Any:
        async with self._session.get(f"{self.url}/peer/state") as response:
            return SimpleNamespace(**await response.json())


@asynccontextmanager
async def upstream_peer() -> AsyncGenerator[UpstreamPeer]:
    port = free_port()
    process = ServerProcess(port, [sys.executable, "-m", "tests.support.upstream_peer", str(port)], {})
    try:
        process.start()
        async with aiohttp.ClientSession() as session:
            yield UpstreamPeer(f"http://127.0.0.1:{port}", session)
    finally:
        process.kill()


def _received(request: Mapping[str, Any]) -> Received:
    return Received(**request)


def _openai(peer: UpstreamPeer) -> dict[str, str]:
    return {"OPENAI_BASE_URL": f"{peer.url}/v1", "OPENAI_API_KEY": "sk-test"}


def _ollama(peer: ollama.OllamaPeer) -> dict[str, str]:
    return {"OLLAMA_LOCAL": peer.url, "AGENT_OLLAMA__CONTEXT_TOKENS": str(CONTEXT)}


def _dapr(peer: dapr.DaprPeer) -> dict[str, str]:
    return {"DAPR_GRPC_ENDPOINT": peer.address}


_SEEING = {"models": {f"{MODEL}:latest": {"capabilities": ["completion", "tools", "vision"]}}}
BACKENDS: Mapping[str, Backend] = {
    backend.name: backend
    for backend in (
        Backend("dial", "DIAL Core", upstream_peer, lambda _: {}, _received),
        Backend("openai", "OpenAI SSE", upstream_peer, _openai, _received),
        Backend("ollama", "Ollama NDJSON", ollama.ollama_peer, _ollama, ollama.in_openais_shape, models=_SEEING),
        Backend("dapr", "Dapr gRPC", dapr.dapr_peer, _dapr, dapr.in_openais_shape, sees=False, streams=False),
    )
}
