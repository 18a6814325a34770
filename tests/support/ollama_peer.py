"""Ollama 0.24 as a process of its own, as far as its API can be seen, with a script in the place of a model.

    python -m tests.support.ollama_peer PORT

True to the server: `/api/version`, `/api/tags`, `/api/show`, `/api/ps`, `/api/chat`; a context of 4,096 tokens and the
front of longer prompts cut away without a word unless `num_ctx` and `truncate` say otherwise; the bodies of its
refusals; arguments as objects only; `load` and `unload`; capabilities; pictures dropped for a model that cannot see;
a model loaded again when its context changes; a client's disconnect ends the generating. A token is four bytes here.

Tests script it over `/peer/…`; see `tests.support.ollama`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import re
import sys
from dataclasses import dataclass, field
from itertools import count
from time import perf_counter
from typing import Any

from aiohttp import web

DEFAULT_CONTEXT, BYTES_PER_TOKEN, PICTURE_TOKENS, KEPT_TOKENS = 4096, 4, 768, 4
CREATED = "2026-01-01T00:00:00.000000Z"
WAIT_SECONDS = 30
_WORD = re.compile(r"\S+\s*|\s+")
MODEL: dict[str, Any] = {
    "capabilities": ["completion", "tools"],
    "context": 32_768,
    "parameters": 7_615_616_512,
    "memory_context": 2**20,  # the largest context for which there is memory
    "load_seconds": 0,
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
    words: list[int] = field(default_factory=list[int])
    stopped: list[int] = field(default_factory=list[int])
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    ids: count[int] = field(default_factory=lambda: count(1))

    def state(self) -> dict[str, Any]:
        names = ("requests", "prompts", "loads", "words", "stopped")
        return {**{name: getattr(self, name) for name in names}, "scripted": len(self.answers)}

    async def notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def model(self, name: Any) -> tuple[str, dict[str, Any]]:
        if not name or not isinstance(name, str):
            raise Refusal(400, "model is required")
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
    peer = request.app[PEER]
    return web.json_response({"models": [_listed(name, {**MODEL, **model}) for name, model in peer.models.items()]})


async def running(request: web.Request) -> web.Response:
    peer = request.app[PEER]
    models = [
        {**_listed(name, {**MODEL, **peer.models.get(name, {})}), "expires_at": CREATED, "size_vram": 0,
         "context_length": context}
        for name, context in peer.loaded.items()
    ]  # fmt: skip
    return web.json_response({"models": models})


def _listed(name: str, model: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "model": name, "modified_at": CREATED, "size": model["parameters"] // 2, "digest": "0" * 64,
            "details": _details(model)}  # fmt: skip


def _details(model: dict[str, Any]) -> dict[str, Any]:
    family = model.get("family", "qwen2")
    size = f"{model['parameters'] / 1e9:.1f}B"
    return {"parent_model": "", "format": "gguf", "family": family, "families": [family], "parameter_size": size,
            "quantization_level": "Q4_K_M"}  # fmt: skip


async def show(request: web.Request) -> web.Response:
    body = await request.json()
    _, model = request.app[PEER].model(body.get("model") or body.get("name"))
    details = _details(model)
    shown = {
        "modelfile": "", "template": "{{ .Prompt }}", "details": details, "modified_at": CREATED,
        "model_info": {
            "general.architecture": details["family"], "general.parameter_count": model["parameters"],
            f"{details['family']}.context_length": model["context"],
        },
        "capabilities": model["capabilities"],
    }  # fmt: skip
    return web.json_response(shown | ({"remote_host": model["remote_host"]} if model["remote_host"] else {}))


async def chat(request: web.Request) -> web.StreamResponse:
    peer, started = request.app[PEER], perf_counter()
    body = await request.json()
    headers = {name.lower(): value for name, value in request.headers.items()}
    if body.get("messages"):
        peer.requests.append({"headers": headers, "body": body})
        await peer.notify()
    name, model = _checked(peer, body)
    messages, context = body.get("messages") or [], _context(body, model)
    if not messages and _seconds(body.get("keep_alive")) == 0:
        peer.loaded.pop(name, None)
        return web.json_response(_line(body, {"content": ""}, done="unload"))
    await _load(peer, name, model, context)
    timing = {"load_duration": int((perf_counter() - started) * 1e9)}
    if not messages:
        return web.json_response(_line(body, {"content": ""}, done="load"))
    prompt, tokens = _prompt(body, model, context)
    peer.prompts.append(prompt)
    unscripted: dict[str, Any] = {"parts": [{"text": "Hello from the peer."}]}
    answer = peer.answers.pop(0) if peer.answers else unscripted
    if "status" in answer:
        raise Refusal(int(answer["status"]), str(answer["error"]))
    return await Answer(peer, request, body, answer, tokens, context - tokens, timing).written()


def _checked(peer: Peer, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    keep_alive = body.get("keep_alive")
    if isinstance(keep_alive, str) and re.fullmatch(r"-?[\d.]+", keep_alive):
        raise Refusal(400, f'time: missing unit in duration "{keep_alive}"')
    for message in body.get("messages") or []:
        _check_message(message)
    for tool in body.get("tools") or []:
        _check_properties(tool["function"].get("parameters") or {})
    name, model = peer.model(body.get("model"))
    if body.get("tools") and "tools" not in model["capabilities"]:
        raise Refusal(400, f"registry.ollama.ai/library/{name} does not support tools")
    if "completion" not in model["capabilities"]:
        raise Refusal(400, f'"{body["model"]}" does not support chat')
    think = body.get("think")
    if think not in (None, True, False, "low", "medium", "high", "max"):
        raise Refusal(400, f'invalid think value: "{think}" (must be "high", "medium", "low", "max", true, or false)')
    if think and "thinking" not in model["capabilities"]:
        raise Refusal(400, f'"{body["model"]}" does not support thinking')
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
            place = (
                "Go struct field ToolFunctionParameters.tools.function.parameters.properties of type api.ToolProperty"
            )
            raise Refusal(400, f"json: cannot unmarshal bool into {place}")
        _check_properties(shape)


def _context(body: dict[str, Any], model: dict[str, Any]) -> int:
    asked = (body.get("options") or {}).get("num_ctx", DEFAULT_CONTEXT)
    return min(asked, model["context"])


def _seconds(keep_alive: Any) -> float | None:
    return 0 if keep_alive in (0, "0", "0s", "0m") else None


async def _load(peer: Peer, name: str, model: dict[str, Any], context: int) -> None:
    if peer.loaded.get(name) == context:
        return
    peer.loaded.pop(name, None)
    if context > model["memory_context"]:
        raise Refusal(500, "model requires more system memory (21.3 GiB) than is available (7.9 GiB)")
    await asyncio.sleep(model["load_seconds"])
    peer.loaded[name] = context
    peer.loads.append([name, context])
    await peer.notify()


def _prompt(body: dict[str, Any], model: dict[str, Any], context: int) -> tuple[str, int]:
    messages = body["messages"]
    cuts = body.get("truncate", True)
    if cuts:  # whole messages first, but never a system prompt or the last message
        for start in range(len(messages)):
            kept = [item for item in messages[:start] if item["role"] == "system"] + messages[start:]
            if start == len(messages) - 1 or _rendered(kept, body, model)[1] <= context:
                messages = kept
                break
    prompt, tokens = _rendered(messages, body, model)
    if tokens <= context:
        return prompt, tokens
    if not cuts:
        raise Refusal(400, "the input length exceeds the context length")
    kept, text = KEPT_TOKENS * BYTES_PER_TOKEN, prompt.encode()
    rest = text[len(text) - (context * BYTES_PER_TOKEN - kept) :]
    return (text[:kept] + rest).decode(errors="ignore"), context


def _rendered(messages: list[dict[str, Any]], body: dict[str, Any], model: dict[str, Any]) -> tuple[str, int]:
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
    """One answer as its parts say; `left` are the tokens that the context has room for."""

    peer: Peer
    request: web.Request
    body: dict[str, Any]
    answer: dict[str, Any]
    prompt_tokens: int
    left: int
    timing: dict[str, Any]
    made: int = 0
    reason: str = "stop"
    response: web.StreamResponse | None = None
    held: bytes = b""
    whole: dict[str, Any] = field(default_factory=lambda: {"content": ""})

    async def written(self) -> web.StreamResponse:
        self.peer.words.append(0)
        try:
            return await self._parts()
        except (asyncio.CancelledError, ConnectionError):
            self.peer.stopped.append(self.peer.words[-1])
            await asyncio.shield(self.peer.notify())
            raise

    async def _parts(self) -> web.StreamResponse:
        streams = self.body.get("stream", True)
        for part in self.answer["parts"]:
            if "pause" in part:
                await asyncio.sleep(part["pause"])
            elif "hang" in part:
                await self._flush()
                await asyncio.Event().wait()
            elif "raw" in part:
                await self._write(base64.b64decode(part["raw"]))
            elif "end" in part:
                return await self._ended(reset=part["end"] == "reset")
            elif "error" in part:
                return await self._failed(part["error"], streams)
            elif not await self._said(part, streams):
                break
        counts = {"total_duration": 1, "prompt_eval_count": self.prompt_tokens, "prompt_eval_duration": 1,
                  "eval_count": self.made, "eval_duration": 1, **self.timing}  # fmt: skip
        if not streams:
            return web.json_response(_line(self.body, self.whole, done=self.reason, **counts))
        await self._line(_line(self.body, {"content": ""}, done=self.reason, **counts))
        return await self._ended()

    async def _said(self, part: dict[str, Any], streams: bool) -> bool:
        """Write a part; False: the answer ends at a limit or a stop sequence."""
        if "token" in part:
            return await self._token(part["token"], part["likeliest"])
        if "call" in part:
            return await self._message({"content": "", "tool_calls": [self._call(part["call"])]}, streams)
        kind = "thinking" if "thinking" in part else "content"
        text = part.get("text", part.get("thinking", ""))
        stops = [place for stop in self._options("stop", []) if (place := text.find(stop)) >= 0]
        for word in _WORD.findall(text[: min(stops)] if stops else text):
            if self.made >= min(self.left, self._options("num_predict", self.left)):
                self.reason = "length"
                return False
            await self._message({"content": "", kind: word}, streams)
        return not stops

    async def _token(self, token: str, likeliest: dict[str, float]) -> bool:
        """Write one token, with the log probabilities at its place where the request asks for them."""
        top = [{"token": other, "logprob": value} for other, value in likeliest.items()]
        weighed = {"token": token, "logprob": likeliest[token], "top_logprobs": top[: self.body.get("top_logprobs", 0)]}
        self.made += 1
        self.peer.words[-1] += 1
        more = {"logprobs": [weighed]} if self.body.get("logprobs") else {}
        await self._line(_line(self.body, {"content": token}, None, **more))
        return True

    def _options(self, name: str, default: Any) -> Any:
        return (self.body.get("options") or {}).get(name, default)

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        number = next(self.peer.ids)
        named = {} if self.answer.get("ids") is False else {"id": f"call_{number:08x}"}
        return {**named, "function": {"index": 0, **call}}

    async def _message(self, message: dict[str, Any], streams: bool) -> bool:
        self.made += 1
        self.peer.words[-1] += 1
        if streams:
            await self._line(_line(self.body, message))
        else:
            self.whole["content"] += message["content"]
            for name, empty in (("thinking", ""), ("tool_calls", [])):
                if name in message:
                    self.whole[name] = self.whole.get(name, empty) + message[name]
        return True

    async def _line(self, line: dict[str, Any]) -> None:
        await self._write(json.dumps(line, ensure_ascii=False).encode() + b"\n")

    async def _write(self, data: bytes) -> None:
        self.held += data
        if self.answer.get("buffered"):
            return
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

    async def _failed(self, text: str, streams: bool) -> web.StreamResponse:
        if not streams or (self.response is None and not self.held):
            raise Refusal(500, text)
        await self._line({"error": text})
        return await self._ended()

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
    except json.JSONDecodeError as error:
        return web.json_response({"error": str(error)}, status=400)


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
