"""Parse the lines of JSON that Ollama answers a chat with into deltas."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import Any, cast

import orjson

from task.errors import ProviderError
from task.llm.base import Delta, Finish, ModelWarning, ReasoningDelta, TextDelta, ToolCallDelta, Usage, WeighedText
from task.llm.chat_chunks import drain
from task.llm.failures import INTERRUPTED, MALFORMED, stream_failure

LINE_LIMIT = 64 * 2**20  # bytes


async def ollama_deltas(
    pieces: AsyncGenerator[bytes], context: int, secrets: Iterable[str] = (), line_limit: int = LINE_LIMIT
) -> AsyncGenerator[Delta]:
    """The deltas in an answer's bytes, then its usage, then its one `Finish`; a whole answer is one line.

    `context` is the model's: a prompt that fills it has been cut by a server that knows no better.

    Raises:
        ProviderError: the server reports a failure, sends something else, or stops before the answer's end.
    """
    answer = _Answer(secrets)
    async with aclosing(pieces), aclosing(_lines(pieces, line_limit)) as lines:
        async for line in lines:
            for delta in answer.read(line):
                yield delta
            if answer.usage is not None:
                break
        if answer.usage is None:
            raise ProviderError("The model's answer was interrupted before its end.", code=INTERRUPTED)
        await drain(pieces)
    if answer.usage.prompt_tokens >= context:
        yield ModelWarning(
            f"the request filled the context of {context} tokens, so its beginning may have been cut off"
        )
    yield answer.usage
    yield Finish(answer.finish_reason)


async def _lines(pieces: AsyncGenerator[bytes], limit: int) -> AsyncGenerator[bytes]:
    # Split at newline bytes, so that characters in pieces come together again.
    held, length = list[bytes](), 0
    async for piece in pieces:
        *lines, rest = piece.split(b"\n")
        for line in lines:
            yield b"".join((*held, line))
            held, length = [], 0
        held.append(rest)
        length += len(rest)
        if length > limit:
            raise ProviderError("The model provider sent an endless line.", code=MALFORMED)
    yield b"".join(held)


class _Answer:
    __slots__ = ("_calls", "_secrets", "_started", "finish_reason", "usage")

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets = secrets
        self._calls = 0
        self._started = False
        self.finish_reason = ""
        self.usage: Usage | None = None  # stands in the last line

    def read(self, line: bytes) -> Iterator[Delta]:
        if not line.strip():
            return iter(())
        try:
            content = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise self._torn() from error
        if not isinstance(content, dict):
            raise self._torn()
        fields = cast("dict[str, Any]", content)
        if error := fields.get("error"):
            raise stream_failure({"message": error, "status": fields.get("status", 500)}, self._secrets)
        try:
            return iter(self._deltas(fields))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._torn() from error

    def _deltas(self, fields: dict[str, Any]) -> list[Delta]:
        message: dict[str, Any] = fields.get("message") or {}
        deltas: list[Delta] = []
        if thinking := message.get("thinking"):
            deltas.append(ReasoningDelta(str(thinking)))
        if text := message.get("content"):
            deltas.append(_weighed(str(text), fields["logprobs"]) if fields.get("logprobs") else TextDelta(str(text)))
        deltas += [self._call(call) for call in message.get("tool_calls") or ()]
        if fields.get("done"):
            self.usage = Usage(int(fields.get("prompt_eval_count") or 0), int(fields.get("eval_count") or 0))
            self.finish_reason = str(fields.get("done_reason") or "stop")
        elif "message" not in fields:
            raise KeyError("message")
        self._started = True
        return deltas

    def _call(self, call: dict[str, Any]) -> ToolCallDelta:
        # Numbered by arrival: the server's index may be the same for each. A call is never in pieces.
        function = call["function"]
        number, self._calls = self._calls, self._calls + 1
        call_id = call.get("id") or function.get("id")
        return ToolCallDelta(number, str(call_id) if call_id else None, function.get("name"), function.get("arguments"))

    def _torn(self) -> ProviderError:
        if self._started:
            return ProviderError("The model's answer was interrupted within a line.", code=INTERRUPTED)
        return ProviderError("The answer of the model provider is not Ollama's.", code=MALFORMED)


def _weighed(text: str, tokens: list[dict[str, Any]]) -> TextDelta:
    if len(tokens) != 1:  # held back by the server until they made whole characters
        return TextDelta(text)
    likeliest = {str(item["token"]): float(item["logprob"]) for item in tokens[0].get("top_logprobs") or ()}
    return WeighedText(text, {**likeliest, text: float(tokens[0]["logprob"])})
