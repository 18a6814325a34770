"""Ollama 0.24 as a process of its own, as far as its API can be seen, with a script in the place of a model.

    python -m tests.support.ollama_peer PORT

True to the server: `/api/version`, `/api/tags`, `/api/show`, `/api/ps`, `/api/chat`; the bodies of its refusals;
arguments as objects only; capabilities; pictures dropped for a model that cannot see; a model loaded by a request
without messages, and again when its context changes; a client's disconnect ends the generating. A token is four bytes
here, and a prompt beyond the context is refused, as the server does for a request that asks not to be cut.

Tests script it over `/peer/…`; see `tests.support.ollama`.
"""

import asyncio
import base64
import binascii
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Any

from aiohttp import web

DEFAULT_CONTEXT, BYTES_PER_TOKEN, PICTURE_TOKENS = 4096, 4, 768
CREATED = "2026-01-01T00:00:00.000000Z"
WAIT_SECONDS = 30
_WORD = re.compile(r"\S+\s*|\s+")
MODEL: dict[str, Any] = {
    "capabilities": ["completion", "tools"],
    "context": 32_768,
    "parameters": 7_615_616_512,
    "memory_context": 2**20,  # the largest context for which there is memory
    "remote_host": None,
}


class Refusal(Exception):
    """An answer other than 200 before the stream."""

    def __init__(self, status: int, text: str) -> None:
        self.status, self.text = status, text


@dataclass
class Peer:
    key: str | None = None
    models: dict[str, dict[str, Any]] = field(default_factory=lambda: {"test-model:latest": MODEL})
    answers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    loaded: dict[str, int] = field(default_factory=dict[str, int])
    requests: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    prompts: list[str] = field(default_factory=list[str])
    loads: list[list[Any]] = field(default_factory=list[list[Any]])
    stopped: list[int] = field(default_factory=list[int])
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    ids: Iterator[int] = field(default_factory=lambda: count(1))

    def state(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("requests", "prompts", "loads", "stopped")}

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def model(self, name: Any) -> tuple[str, dict[str, Any]]:
        asked = (name if ":" in name else f"{name}:latest").casefold()
        whole = next((known for known in self.models if known.casefold() == asked), None)
        if whole is None:
            raise Refusal(404, f"model '{name}' not found")
        return whole, {**MODEL, **self.models[whole]}


# The script and what the peer has seen


async def script(request: web.Request) -> web.Response:
    peer, body = request.app[PEER], await request.json()
    if body.get("reset"):
        vars(peer).update(vars(Peer()))
    peer.answers += body.get("answers", [])
    for name, model in body.get("models", {}).items():
        peer.models.pop(name, None)
        if model is not None:
            peer.models[name] = model
    peer.key = body.get("key", peer.key)
    return web.json_response({})


async def state(request: web.Request) -> web.Response:
    peer, least = request.app[PEER], {name: int(value) for name, value in request.query.items()}
    async with asyncio.timeout(WAIT_SECONDS), peer.changed:
        await peer.changed.wait_for(lambda: all(len(peer.state()[name]) >= value for name, value in least.items()))
    return web.json_response(peer.state())


# The server's API


async def version(_: web.Request) -> web.Response:
    return web.json_response({"version": "0.24.0"})


async def tags(request: web.Request) -> web.Response:
    models = request.app[PEER].models.items()
    return web.json_response({"models": [{"name": name, "model": name, **_details(model)} for name, model in models]})


async def running(request: web.Request) -> web.Response:
    peer = request.app[PEER]
    models = [
        {"name": name, "model": name, **_details(peer.models.get(name, {})), "context_length": context}
        for name, context in peer.loaded.items()
    ]
    return web.json_response({"models": models})


def _details(model: dict[str, Any]) -> dict[str, Any]:
    parameters = {**MODEL, **model}["parameters"]
    details = {"format": "gguf", "family": "qwen2", "parameter_size": f"{parameters / 1e9:.1f}B"}
    return {"modified_at": CREATED, "size": parameters // 2, "details": details}


async def show(request: web.Request) -> web.Response:
    _, model = request.app[PEER].model((await request.json())["model"])
    shown = {
        **_details(model),
        "model_info": {
            "general.architecture": "qwen2",
            "general.parameter_count": model["parameters"],
            "qwen2.context_length": model["context"],
        },
        "capabilities": model["capabilities"],
    }
    return web.json_response(shown | ({"remote_host": model["remote_host"]} if model["remote_host"] else {}))


async def chat(request: web.Request) -> web.StreamResponse:
    peer, started = request.app[PEER], perf_counter()
    body = await request.json()
    messages = body.get("messages") or []
    if messages:
        headers = {name.lower(): value for name, value in request.headers.items()}
        peer.requests.append({"headers": headers, "body": body})
        await peer.notify()
    name, model = _checked(peer, body)
    context = min((body.get("options") or {}).get("num_ctx", DEFAULT_CONTEXT), model["context"])
    await _load(peer, name, model, context)
    counts = {"load_duration": int((perf_counter() - started) * 1e9), "total_duration": 1}
    if not messages:
        return web.json_response(_line(body, {"content": ""}, done="load"))
    prompt, tokens = _rendered(messages, body, model)
    if tokens > context:
        raise Refusal(400, "the input length exceeds the context length")
    peer.prompts.append(prompt)
    answer: dict[str, Any] = peer.answers.pop(0) if peer.answers else {"parts": [{"text": "Hello from the peer."}]}
    if "status" in answer:
        raise Refusal(int(answer["status"]), str(answer["error"]))
    return await Answer(peer, request, body, answer, {**counts, "prompt_eval_count": tokens}).written()


def _checked(peer: Peer, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    keep_alive = body.get("keep_alive")
    if isinstance(keep_alive, str) and re.fullmatch(r"-?[\d.]+", keep_alive):
        raise Refusal(400, f'time: missing unit in duration "{keep_alive}"')
    for message in body.get("messages") or []:
        _check_message(message)
    for tool in body.get("tools") or []:
        _check_properties(tool["function"].get("parameters") or {})
    name, model = peer.model(body.get("model"))
    think = body.get("think")
    if think not in (None, True, False, "low", "medium", "high", "max"):
        raise Refusal(400, f'invalid think value: "{think}" (must be "high", "medium", "low", "max", true, or false)')
    needed = {"tools": body.get("tools"), "completion": True, "thinking": think}
    lacking = [each for each, asked in needed.items() if asked and each not in model["capabilities"]]
    if lacking:
        raise Refusal(400, f'"{body["model"]}" does not support {lacking[0].replace("completion", "chat")}')
    return name, model


def _check_message(message: dict[str, Any]) -> None:
    if not isinstance(message.get("content", ""), str):
        place = "Go struct field ChatRequest.messages.content of type string"
        raise Refusal(400, f"json: cannot unmarshal array into {place}")
    for call in message.get("tool_calls") or []:
        if not isinstance(call["function"]["arguments"], dict):
            raise Refusal(400, "Value looks like object, but can't find closing '}' symbol")
    for picture in message.get("images") or []:
        try:
            base64.b64decode(picture, validate=True)
        except binascii.Error:
            raise Refusal(400, "illegal base64 data at input byte 0") from None


def _check_properties(schema: dict[str, Any]) -> None:
    if not isinstance(schema.get("required", []), list):
        raise Refusal(400, "json: cannot unmarshal bool into Go struct field ToolProperty.required of type []string")
    for shape in (schema.get("properties") or {}).values():
        if not isinstance(shape, dict):
            raise Refusal(400, "json: cannot unmarshal bool into Go struct field of type api.ToolProperty")
        _check_properties(shape)


async def _load(peer: Peer, name: str, model: dict[str, Any], context: int) -> None:
    if peer.loaded.get(name) == context:
        return
    peer.loaded.pop(name, None)
    if context > model["memory_context"]:
        raise Refusal(500, "model requires more system memory (21.3 GiB) than is available (7.9 GiB)")
    peer.loaded[name] = context
    peer.loads.append([name, context])
    await peer.notify()


def _rendered(messages: list[dict[str, Any]], body: dict[str, Any], model: dict[str, Any]) -> tuple[str, int]:
    """What the model reads, and its tokens."""
    tools = "".join(f"{json.dumps(tool)}\n" for tool in body.get("tools") or ())
    texts = [
        f"<|im_start|>{item['role']}\n{item.get('thinking', '')}{item.get('content', '')}"
        f"{''.join(json.dumps(call['function']) for call in item.get('tool_calls') or ())}<|im_end|>\n"
        for item in messages
    ]
    pictures = sum(len(item.get("images") or ()) for item in messages) if "vision" in model["capabilities"] else 0
    prompt = tools + "".join(texts) + "[img]" * pictures
    return prompt, -(-len(prompt.encode()) // BYTES_PER_TOKEN) + pictures * PICTURE_TOKENS


def _line(body: dict[str, Any], message: dict[str, Any], done: str | None = None, **more: Any) -> dict[str, Any]:
    head = {"model": body["model"], "created_at": CREATED, "message": {"role": "assistant", **message}}
    return {**head, "done": done is not None} | ({"done_reason": done} if done else {}) | more


@dataclass
class Answer:
    """One answer, part by part."""

    peer: Peer
    request: web.Request
    body: dict[str, Any]
    answer: dict[str, Any]
    counts: dict[str, Any]
    made: int = 0
    response: web.StreamResponse | None = None
    held: bytes = b""

    async def written(self) -> web.StreamResponse:
        try:
            return await self._parts()
        except (asyncio.CancelledError, ConnectionError):
            self.peer.stopped.append(self.made)
            await asyncio.shield(self.peer.notify())
            raise

    async def _parts(self) -> web.StreamResponse:
        for part in self.answer["parts"]:
            match part:
                case {"pause": seconds}:
                    await asyncio.sleep(seconds)
                case {"hang": _}:
                    await self._flush()
                    await asyncio.Event().wait()
                case {"raw": data}:
                    await self._write(base64.b64decode(data))
                case {"end": end}:
                    return await self._ended(reset=end == "reset")
                case {"error": text} if self.response is None and not self.held:
                    raise Refusal(500, text)
                case {"error": text}:
                    await self._write_line({"error": text})
                    return await self._ended()
                case {"token": token, "likeliest": likeliest}:
                    await self._token(token, likeliest)
                case {"call": call}:
                    named = {} if self.answer.get("ids") is False else {"id": f"call_{next(self.peer.ids):08x}"}
                    await self._message(tool_calls=[{**named, "function": {"index": 0, **call}}])
                case _:
                    [(kind, text)] = part.items()
                    for word in _WORD.findall(text):
                        await self._message(**{"content" if kind == "text" else "thinking": word})
        counts = {**self.counts, "eval_count": self.made}
        await self._write_line(_line(self.body, {"content": ""}, done="stop", **counts))
        return await self._ended()

    async def _token(self, token: str, likeliest: dict[str, float]) -> None:
        """Write one token, with the log probabilities at its place where the request asks for them."""
        self.made += 1
        top = [{"token": other, "logprob": value} for other, value in likeliest.items()]
        weighed = {"token": token, "logprob": likeliest[token], "top_logprobs": top[: self.body.get("top_logprobs", 0)]}
        more = {"logprobs": [weighed]} if self.body.get("logprobs") else {}
        await self._write_line(_line(self.body, {"content": token}, None, **more))

    async def _message(self, **message: Any) -> None:
        self.made += 1
        await self._write_line(_line(self.body, {"content": "", **message}))

    async def _write_line(self, line: dict[str, Any]) -> None:
        await self._write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    async def _write(self, data: bytes) -> None:
        self.held += data
        if not self.answer.get("buffered"):
            await self._flush()

    async def _flush(self) -> None:
        if self.response is None:
            self.response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
            await self.response.prepare(self.request)
        data, self.held = self.held, b""
        size = self.answer.get("bytes_per_write") or max(len(data), 1)
        for place in range(0, len(data), size):
            await self.response.write(data[place : place + size])
            if size < len(data):
                await asyncio.sleep(0)

    async def _ended(self, *, reset: bool = False) -> web.StreamResponse:
        await self._flush()
        assert self.response is not None
        if reset and self.request.transport is not None:
            self.request.transport.abort()
        else:
            await self.response.write_eof()
        return self.response


@web.middleware
async def refusing(request: web.Request, handler: Any) -> web.StreamResponse:
    peer = request.app[PEER]
    key = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if peer.key is not None and request.path.startswith("/api/") and key != peer.key:
        return web.json_response({"error": "unauthorized"}, status=401)
    try:
        return await handler(request)
    except Refusal as refusal:
        return web.json_response({"error": refusal.text}, status=refusal.status)


PEER = web.AppKey("peer", Peer)


async def main(port: int) -> None:
    app = web.Application(client_max_size=256 * 2**20, middlewares=[refusing])
    app[PEER] = Peer()
    app.router.add_get("/api/version", version)
    app.router.add_get("/api/tags", tags)
    app.router.add_get("/api/ps", running)
    app.router.add_post("/api/show", show)
    app.router.add_post("/api/chat", chat)
    app.router.add_post("/peer/script", script)
    app.router.add_get("/peer/state", state)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.05, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
