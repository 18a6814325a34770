"""A test's hold on `tests.support.dapr_peer`: start and kill the process, script its model, see what it received.

    async with dapr_peer(wants("calculator", expression="25*47"), says("1175")) as peer:
        peer.address                    for DAPR_GRPC_ENDPOINT; `peer.kill()` and `peer.start()` as often as you like
        await peer.script(says("…"))    further answers, `components={name: type}`, `token` and `version` beside them;
                                    `endpoints={name: {url, key, model}}` of components that ask a real provider
        await peer.seen(requests=2)     the requests, what the provider read, the stopped calls, once there are so many

An answer is a `Reply`, or the peer's own: `answer({"text": "…", "calls": […], "reason": "stop"}, …)`, one for each
choice, `refusal(429, "…")`, `HANGS`, or `{"error": "…"}` in the words of a component.
"""

import json
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from task.errors import ProviderError
from task.llm.base import Finish, ReasoningDelta, TextDelta, ToolCallDelta, Usage
from task.llm.scripted import Pause, Reply
from tests.support.mcp_processes import ServerProcess
from tests.support.ports import free_port
from tests.support.upstream import Received

MODEL = "test-model"
HANGS: dict[str, Any] = {"hangs": True}
Scripted = Reply | dict[str, Any]


def answer(*choices: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An answer with these choices; `seconds=1` makes it slow."""
    return {"choices": list(choices), **more}


def refusal(status: int, error: str) -> dict[str, Any]:
    """The provider's, as the component passes it on."""
    return {"status": status, "error": error}


@dataclass(frozen=True, slots=True)
class Seen:
    """What the peer has received: bodies and metadata of calls, the messages that its provider read of each,
    and the components whose calls were stopped."""

    requests: list[dict[str, Any]]
    prompts: list[list[dict[str, Any]]]
    stopped: list[str]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [request["body"] for request in self.requests]


class DaprPeer:
    def __init__(self, process: ServerProcess, grpc_port: int, session: aiohttp.ClientSession) -> None:
        self._session = session
        self.url = f"http://127.0.0.1:{process.port}"  # also that of the health path, as DAPR_HTTP_ENDPOINT
        self.port, self.address = grpc_port, f"127.0.0.1:{grpc_port}"
        self.start, self.kill = process.start, process.kill

    async def script(self, *answers: Scripted, reset: bool = False, **given: Any) -> None:
        """Further answers; `given` are `components`, `endpoints`, `token`, `version` and `metadata` of the peer."""
        spoken = [item if isinstance(item, dict) else _spoken(item) for item in answers]
        body = {"answers": spoken, "reset": reset, **given}
        async with self._session.post(f"{self.url}/peer/script", json=body) as response:
            assert response.status == 200, await response.text()

    async def seen(self, **least: int) -> Seen:
        """What it has received, once each list has at least so many items."""
        async with self._session.get(f"{self.url}/peer/state", params=least) as response:
            assert response.status == 200, f"not within 30 s: {least}"
            return Seen(**await response.json())


@contextmanager
def dapr_process(*options: str, started: bool = True) -> Generator[tuple[ServerProcess, int]]:
    """The process with its gRPC port; `options` are a certificate and its key."""
    port, grpc_port = free_port(), free_port()
    command = [sys.executable, "-m", "tests.support.dapr_peer", str(port), str(grpc_port), *options]
    process = ServerProcess(port, command, {})
    try:
        if started:
            process.start()
        yield process, grpc_port
    finally:
        process.kill()


@asynccontextmanager
async def scripted_peer(
    process: tuple[ServerProcess, int], *answers: Scripted, **more: Any
) -> AsyncGenerator[DaprPeer]:
    """A running process, as if it had just been started with these answers; `more` as `script` takes it."""
    async with aiohttp.ClientSession() as session:
        peer = DaprPeer(*process, session)
        await peer.script(*answers, **more, reset=True)
        yield peer


@asynccontextmanager
async def dapr_peer(*answers: Scripted, **more: Any) -> AsyncGenerator[DaprPeer]:
    """A process of its own with these answers; `more` as `script` takes it."""
    with dapr_process() as process:
        async with scripted_peer(process, *answers, **more) as peer:
            yield peer


def in_openais_shape(request: Mapping[str, Any]) -> Received:
    """What the peer received, as OpenAI's API would have: flat messages, and no empty content beside calls."""
    body = dict(request["body"])
    inputs = body.pop("inputs", [])
    body["model"] = body.pop("name")
    body["messages"] = [_openai_message(item) for part in inputs for item in part["messages"]]
    if "tools" in body:
        body["tools"] = [{"type": "function", "function": tool["function"]} for tool in body["tools"]]
    return Received("ConverseAlpha2", {}, request["headers"], body)


def _openai_message(message: Mapping[str, Any]) -> dict[str, Any]:
    [(kind, inner)] = message.items()
    texts = [part.get("text", "") for part in inner.get("content", ())]
    wire: dict[str, Any] = {"role": kind.removeprefix("of_")}
    if texts or "tool_calls" not in inner:
        wire["content"] = "\n".join(texts)
    if "tool_calls" in inner:
        wire["tool_calls"] = [
            {"id": call["id"], "type": "function", "function": call["function"]} for call in inner["tool_calls"]
        ]
    if "tool_id" in inner:
        wire["tool_call_id"] = inner["tool_id"]
    return wire | ({"name": inner["name"]} if inner.get("name") else {})


def _spoken(reply: Reply) -> dict[str, Any]:
    text, calls, seconds = "", list[dict[str, Any]](), 0.0
    more: dict[str, Any] = {}
    for event in reply.events:
        match event:
            case TextDelta(piece):
                text += piece
            case ToolCallDelta(name=name, arguments=arguments):
                raw = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
                calls.append({"name": name, "arguments": raw})
            case Pause(pause):
                seconds += pause
            case Finish():
                pass
            case Usage(read, written):
                more["usage"] = [read, written]
            case ProviderError(status_code=None):
                return {"error": "network error: failed to reach API server"}
            case ProviderError(status_code=int(status)):
                return refusal(status, event.text or str(event))
            case ReasoningDelta():
                pass  # the sidecar drops it
            case _:
                raise TypeError(f"Dapr has nothing like {event}")
    choice = {"text": text, "calls": calls, "reason": reply.finish.reason}
    return answer(choice, **more) | ({"seconds": seconds} if seconds else {})
