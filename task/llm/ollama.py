"""Models of an Ollama server through its native API, which knows their limits and abilities."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import aiohttp
import orjson
from cachetools import TTLCache

from task.conversation.messages import Message
from task.errors import ProviderError
from task.llm.base import (
    Delta,
    Finish,
    ModelOptions,
    ModelWarning,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolSchema,
    Usage,
    Waiting,
    WeighedText,
)
from task.llm.failures import INTERRUPTED, MALFORMED, stream_failure
from task.llm.ollama_request import SMALL_CONTEXT, OllamaModel, chat_body, offered_tools, without_effect
from task.llm.text_calls import with_text_calls
from task.llm.transport import RETRIES, Retries, answer_bytes, drain, listed
from task.llm.window import ANSWER_TOKENS

logger = logging.getLogger(__name__)

OLLAMA = "Ollama"
KEPT_SECONDS = 300
LINE_LIMIT = 64 * 2**20  # bytes
LEAST_CONTEXT, MOST_CONTEXT = 8192, 65_536
_HEADERS = {"Accept": "application/x-ndjson"}
_PARAMETERS = "general.parameter_count"
_SENTENCES = (
    (
        re.compile(r"model .+ not found", re.DOTALL),
        "Ollama has no model {model}. Choose another one, or get it with: ollama pull {model}",
    ),
    (
        re.compile(r"more system memory|out of memory|(unable|failed) to allocate", re.IGNORECASE),
        "The model {model} needs more memory than Ollama has. Choose a smaller one, or let it read less at a time "
        "(AGENT_OLLAMA__CONTEXT_TOKENS).",
    ),
    (re.compile(r"does not support tools"), "The model {model} cannot use tools. Choose one that can."),
    (re.compile(r"does not support chat"), "The model {model} cannot chat. Choose another one."),
)


def machine_memory() -> int:
    """Bytes of memory that this machine has; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 0


def context_for(memory: int) -> int:
    """The most tokens of context that a machine with so much memory gives a model: 1,024 for each GiB."""
    return min(max(memory // 2**30 * 1024, LEAST_CONTEXT), MOST_CONTEXT)


class OllamaServer:
    """The server at `url`; one that takes an `api_key` is Ollama's cloud, and no other host gets it.

    `context` bounds the context of its models, `keep_alive` is how long they stay loaded (as Ollama writes it).
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        api_key: str = "",
        *,
        context: int = LEAST_CONTEXT,
        keep_alive: str | None = None,
        retries: Retries = RETRIES,
    ) -> None:
        self.url, self.keep_alive = url, keep_alive
        self._session, self._key, self._context, self._retries = session, api_key, context, retries
        self._authorization = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._kept: TTLCache[str, OllamaModel] = TTLCache(1000, KEPT_SECONDS)

    def chat_model(self, name: str) -> OllamaChatModel:
        return OllamaChatModel(self, name)

    async def model(self, name: str) -> OllamaModel:
        """What the server reports of a model.

        Raises:
            ProviderError: it has no such model, or cannot be asked.
        """
        found = self._kept.get(name)
        if found is None:
            try:
                content = [piece async for piece in self._post("/api/show", orjson.dumps({"model": name}))]
            except ProviderError as error:
                self._explain(error, name)
                raise
            try:
                shown: dict[str, Any] = orjson.loads(b"".join(content))
                info: dict[str, Any] = shown.get("model_info") or {}
                limit, count = info.get(f"{info.get('general.architecture')}.context_length"), info.get(_PARAMETERS)
                limit = limit if isinstance(limit, int) and limit > 0 else self._context
                remote = bool(self._key or shown.get("remote_host"))
                found = OllamaModel(
                    name,
                    limit if remote else min(limit, self._context),  # the bound is about a machine's memory
                    frozenset(map(str, shown["capabilities"])) if shown.get("capabilities") else None,
                    count if isinstance(count, int) else None,
                    remote,
                )
                if found.is_small:
                    found = replace(found, context=min(found.context, SMALL_CONTEXT))
                self._kept[name] = found
            except (orjson.JSONDecodeError, AttributeError, TypeError) as error:
                text = "What answers in the place of Ollama does not describe its models."
                raise ProviderError(text, code=MALFORMED) from error
        return found

    async def models(self) -> list[str]:
        """The names of the server's models; none where it does not list them."""
        found = await listed(self._session, f"{self.url}/api/tags", self._authorization, "models")
        return [str(item["name"]) for item in found or () if "name" in item]

    async def accepts_images(self, model: str, _api_key: str = "") -> bool:
        """Whether the model sees pictures; Ollama drops them for one that does not."""
        return (await self.model(model)).can("vision")

    async def request_tokens(self, model: str, _api_key: str = "") -> int:
        """How many tokens a request may have, with room left for the answer."""
        context = (await self.model(model)).context
        return context - min(ANSWER_TOKENS, context // 4)

    async def is_loaded(self, model: OllamaModel) -> bool:
        """Whether the model can answer at once, with its context; also where the server does not say."""
        found = await listed(self._session, f"{self.url}/api/ps", self._authorization, "models")
        loaded = [item for item in found or () if model.is_named(str(item.get("model")))]
        return found is None or any(item.get("context_length", model.context) == model.context for item in loaded)

    async def answer(self, body: bytes, model: OllamaModel) -> AsyncGenerator[Delta]:
        """The deltas of the answer to a chat request, then its usage, then its one `Finish`.

        Raises:
            ProviderError: the server reports a failure, sends something else, or stops before the answer's end; with a
                sentence for users where the server's words say what to do.
        """
        answer, line = _OllamaAnswer((self._key,)), bytearray()
        try:
            async with aclosing(self._post("/api/chat", body)) as pieces:
                async for piece in pieces:
                    # Split at newline bytes, so that characters that were cut come together again.
                    *ends, rest = piece.split(b"\n")
                    for end in ends:
                        line += end
                        for delta in answer.read(line):
                            yield delta
                        line.clear()
                    if answer.usage is not None:
                        break
                    line += rest
                    if len(line) > LINE_LIMIT:
                        raise ProviderError("The model provider sent an endless line.", code=MALFORMED)
                else:
                    for delta in answer.read(line):
                        yield delta
                if answer.usage is None:
                    raise ProviderError("The model's answer was interrupted before its end.", code=INTERRUPTED)
                await drain(pieces)
        except ProviderError as error:
            self._explain(error, model.name)
            raise
        if answer.usage.prompt_tokens >= model.context:  # cut by a server that knows no better
            full = f"the request filled the context of {model.context} tokens, so its beginning may have been cut off"
            yield ModelWarning(full)
        yield answer.usage
        yield Finish(answer.finish_reason)

    def _post(self, path: str, body: bytes) -> AsyncGenerator[bytes, Any]:
        headers = {**_HEADERS, **self._authorization}
        return answer_bytes(self._session, f"{self.url}{path}", body, headers, self._retries, OLLAMA)

    def _explain(self, error: ProviderError, model: str) -> None:
        if error.status_code == 404:
            self._kept.pop(model, None)
        if error.status_code is not None and error.status_code >= 500:
            logger.error("Ollama failed with the model %s: %s", model, error.text)  # its own words, never a message's
        for text, sentence in _SENTENCES:
            if text.search(error.text):
                error.display_message = sentence.format(model=model)


@dataclass(frozen=True, slots=True)
class OllamaChatModel:
    """One model of a server."""

    server: OllamaServer
    name: str

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        model = await self.server.model(self.name)
        for warning in without_effect(model, tools, options):
            yield ModelWarning(warning)
        if not (model.remote or await self.server.is_loaded(model)):
            yield Waiting(f"Ollama is loading the model {self.name}")
        body = chat_body(model, messages, tools, options, keep_alive=self.server.keep_alive)
        offered = offered_tools(model, tools, options)
        answer = with_text_calls(self.server.answer(body, model), messages, offered, options)
        async with aclosing(answer) as deltas:
            async for delta in deltas:
                yield delta


class _OllamaAnswer:
    __slots__ = ("_calls", "_secrets", "_started", "finish_reason", "usage")

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = secrets
        self._calls = 0
        self._started = False
        self.finish_reason = ""
        self.usage: Usage | None = None  # stands in the last line

    def read(self, line: bytearray) -> list[Delta]:
        if not line.strip() or self.usage is not None:
            return []
        try:
            fields: dict[str, Any] = orjson.loads(line)
            if error := fields.get("error"):
                raise stream_failure({"message": error, "status": fields.get("status", 500)}, self._secrets)
            return self._deltas(fields)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
            if self._started:
                raise ProviderError("The model's answer was interrupted within a line.", code=INTERRUPTED) from error
            raise ProviderError("The answer of the model provider is not Ollama's.", code=MALFORMED) from error

    def _deltas(self, fields: dict[str, Any]) -> list[Delta]:
        message: dict[str, Any] = fields.get("message") or {}
        deltas: list[Delta] = []
        if thinking := message.get("thinking"):
            deltas.append(ReasoningDelta(str(thinking)))
        if text := message.get("content"):
            tokens: list[dict[str, Any]] = fields.get("logprobs") or []
            if len(tokens) == 1:  # several were held back by the server until they made whole characters
                likeliest = {str(item["token"]): float(item["logprob"]) for item in tokens[0].get("top_logprobs") or ()}
                deltas.append(WeighedText(str(text), {**likeliest, str(text): float(tokens[0]["logprob"])}))
            else:
                deltas.append(TextDelta(str(text)))
        for call in message.get("tool_calls") or ():
            # Numbered by arrival: the server's index may be the same for each. A call is never in pieces.
            function = call["function"]
            call_id = call.get("id") or function.get("id")
            made = function.get("name"), function.get("arguments")
            deltas.append(ToolCallDelta(self._calls, str(call_id) if call_id else None, *made))
            self._calls += 1
        if fields.get("done"):
            self.usage = Usage(int(fields.get("prompt_eval_count") or 0), int(fields.get("eval_count") or 0))
            self.finish_reason = str(fields.get("done_reason") or "stop")
        elif "message" not in fields:
            raise KeyError("message")
        self._started = True
        return deltas
