"""Parse server-sent events, and the chunks of an OpenAI-shaped chat completion in them into deltas."""

import re
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import aclosing
from typing import Any

import orjson

from task.conversation.messages import Attachment
from task.errors import ProviderError
from task.llm.base import Delta, DialDelta, FileDelta, Finish, ReasoningDelta, TextDelta, ToolCallDelta, Usage, Waiting
from task.llm.failures import INTERRUPTED, MALFORMED, stream_failure
from task.llm.transport import drain

DONE = b"[DONE]"
EVENT_LIMIT = 64 * 2**20  # bytes; a picture may come inside one event

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"
_WRONG_SHAPE = (orjson.JSONDecodeError, AttributeError, TypeError, KeyError, IndexError)
_CONTENT = b'"content":'
_ATTACHMENT_FIELDS = ("type", "title", "data", "url", "reference_url", "reference_type")
_LESSONS = 50  # chunks from which the bytes around the text are learned at most, in one answer


class EventTooLong(ValueError):
    """One event is larger than the reader's limit."""


class SseReader:
    """Turns bytes into the payloads of whole events; `[DONE]` is a payload like any other.

    Comments and fields other than `data` are dropped. `close()` returns a body that is JSON instead of events as one
    payload, and a last event without its blank line.
    Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
    """

    __slots__ = ("_held", "_is_json", "_limit", "_started")

    def __init__(self, limit: int = EVENT_LIMIT) -> None:
        self._limit = limit
        self._held = bytearray()
        self._started = False
        self._is_json = False

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that `data` completes.

        Raises:
            EventTooLong: more than `limit` bytes have come without an event's end.
        """
        if not self._started:
            data = (self._released() + data).removeprefix(_BOM)
            begin = data.lstrip()
            self._started = bool(begin) and not _BOM.startswith(begin)
            self._is_json = begin[:1] in (b"{", b"[")
        elif not self._held and data[:6] == b"data: " and data.find(b"\n") == len(data) - 2 and data[-1:] == b"\n":
            return [data[6:-2]]
        if self._is_json or (b"\n" not in data and b"\r" not in data):
            self._hold(data)
            return []
        if self._held:
            data = self._released() + data
        if b"\r" in data:
            # A carriage return at the very end stays: it may be half of a line end.
            half = b"\r" if data.endswith(b"\r") else b""
            data = _LINE_END.sub(b"\n", data.removesuffix(half)) + half
        blocks = data.split(b"\n\n")
        if rest := blocks.pop():
            self._hold(rest)
        plain = [block[6:] if block[:6] == b"data: " and b"\n" not in block else _payload(block) for block in blocks]
        return [payload for payload in plain if payload is not None]

    def close(self) -> list[bytes]:
        """The payloads that remain at the end of the bytes."""
        rest = self._released()
        if self._is_json:
            return [rest]
        payload = _payload(_LINE_END.sub(b"\n", rest).strip(b"\n"))
        return [] if payload is None else [payload]

    def _hold(self, data: bytes) -> None:
        self._held += data
        if len(self._held) > self._limit:
            raise EventTooLong(f"more than {self._limit} bytes without an event's end")

    def _released(self) -> bytes:
        held = bytes(self._held)
        self._held.clear()
        return held


def _payload(block: bytes) -> bytes | None:
    lines = [line[5:].removeprefix(b" ") for line in block.split(b"\n") if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


async def chat_deltas(
    pieces: AsyncGenerator[bytes, Any], secrets: Iterable[str] = (), event_limit: int = EVENT_LIMIT
) -> AsyncGenerator[Delta]:
    """The deltas in an answer's bytes, then its usage if there was one, then its one `Finish`.

    Raises:
        ProviderError: the provider reports a failure in the stream, sends no chunks, or stops without a finish reason.
    """
    answer = _ChatAnswer(secrets, event_limit)
    async with aclosing(pieces):
        async for piece in pieces:
            for delta in answer.feed(piece):
                yield delta
            if answer.done:
                break
        for delta in answer.close():
            yield delta
        await drain(pieces)
    if answer.usage is not None:
        yield answer.usage
    yield Finish(answer.finish_reason)


class _ChatAnswer:
    def __init__(self, secrets: Iterable[str], event_limit: int) -> None:
        self._reader, self._secrets = SseReader(event_limit), secrets
        # Most chunks differ from an earlier one in their text only: the bytes around it are compared, not parsed.
        self._before, self._after, self._lessons = b"", b"", _LESSONS
        self._started = False  # whether a chunk has been parsed
        self.done = False
        self.finish_reason = ""
        self.usage: Usage | None = None

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """The deltas of a piece, parsed lazily: the first word of an answer does not wait for the others in the same
        piece. Texts after it that are in one piece are one delta, so that an answer that arrives faster than it can be
        sent on costs less."""
        try:
            payloads = self._reader.feed(piece)
        except EventTooLong as error:
            raise ProviderError("The model provider sent an endless chunk.", code=MALFORMED, text=str(error)) from error
        return self._read(payloads)

    def close(self) -> Iterator[Delta]:
        """The deltas that the end of the stream completes."""
        if self.done:
            return
        try:
            yield from self._read(self._reader.close())
        except ProviderError as error:
            if error.code != MALFORMED:
                raise
            # A torn last line does not matter after the answer's end.
        if not self.finish_reason:
            raise _interrupted() if self._started else _malformed()

    def _read(self, payloads: list[bytes]) -> Iterator[Delta]:
        texts: list[str] = []
        for payload in payloads:
            if self._before and (text := self._repeated(payload)):
                texts.append(text)
                continue
            if texts:
                yield TextDelta("".join(texts))
                texts.clear()
            if payload == DONE:
                if not self.finish_reason:
                    raise _interrupted()
                self.done = True
                return
            deltas = self._deltas(payload)
            if len(deltas) == 1 and isinstance(deltas[0], TextDelta):
                self._learn(payload, deltas[0].text)
            yield from deltas
            if self.finish_reason == "error":
                raise stream_failure("the provider gave no reason")
        if texts:
            yield TextDelta("".join(texts))

    def _repeated(self, payload: bytes) -> str:
        # The chunk's text; empty if more than its text is different.
        before, after = self._before, self._after
        if not (payload.startswith(before) and payload.endswith(after)):
            return ""
        try:
            text = orjson.loads(payload[len(before) : len(payload) - len(after)])
        except orjson.JSONDecodeError:
            return ""
        return text if type(text) is str else ""

    def _learn(self, payload: bytes, text: str) -> None:
        if not self._lessons:
            return
        self._lessons -= 1
        before, found, after = payload.partition(_CONTENT + orjson.dumps(text))
        # Only if the text is all there is: without it, the chunk must have no deltas.
        if found and not self._deltas(b"%b%bnull%b" % (before, _CONTENT, after)):
            self._before, self._after = before + _CONTENT, after

    def _deltas(self, payload: bytes) -> list[Delta]:
        deltas: list[Delta] = []
        try:
            chunk: dict[str, Any] = orjson.loads(payload)
            if chunk.get("error") or chunk.get("object") == "error":
                raise stream_failure(chunk.get("error") or chunk, self._secrets)
            self._started = True
            if usage := chunk.get("usage"):
                self.usage = _usage(usage)
            if choices := chunk.get("choices"):
                choice = choices[0]
                if delta := choice.get("delta") or choice.get("message"):
                    _read_delta(delta, deltas)
                if reason := choice.get("finish_reason"):
                    self.finish_reason = reason
        except _WRONG_SHAPE as error:
            raise _malformed() from error
        return deltas


def _usage(usage: dict[str, Any]) -> Usage:
    def detail(group: str, name: str) -> int:
        details = usage.get(group)
        count = details.get(name) if isinstance(details, dict) else None
        return count if type(count) is int else 0

    cached = detail("prompt_tokens_details", "cached_tokens")
    reasoning = detail("completion_tokens_details", "reasoning_tokens")
    return Usage(usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0, cached, reasoning)


def _read_delta(delta: dict[str, Any], deltas: list[Delta]) -> None:
    if content := delta.get("content"):
        if not isinstance(content, str):
            content = "".join(part["text"] for part in content if part.get("type") == "text")
        deltas.append(TextDelta(content))
        if len(delta) == 1:
            return  # nearly every chunk of a text has nothing else
    if calls := delta.get("tool_calls"):
        deltas += map(tool_call_delta, calls)
        if len(delta) == 1:
            return
    if reasoning := delta.get("reasoning_content") or delta.get("reasoning"):
        deltas.append(ReasoningDelta(str(reasoning)))
    if refusal := delta.get("refusal"):
        deltas.append(TextDelta(refusal))
    if isinstance(fields := delta.get("custom_fields"), dict):
        deltas.append(DialDelta(fields))
    if custom := delta.get("custom_content"):
        for item in custom.get("attachments") or ():
            given = {name: item[name] for name in _ATTACHMENT_FIELDS if item.get(name) is not None}
            deltas.append(FileDelta(Attachment(**given)))
        deltas.append(DialDelta(custom))
        opened = (stage for stage in custom.get("stages") or () if stage.get("status", "") is None)
        deltas.extend(Waiting(str(stage["name"])) for stage in opened if stage.get("name"))


def tool_call_delta(call: dict[str, Any]) -> ToolCallDelta:
    """One item of `delta.tool_calls`."""
    function = call.get("function") or {}
    index, call_id = call.get("index"), call.get("id")
    return ToolCallDelta(
        index if isinstance(index, int) else None,
        str(call_id) if call_id else None,
        function.get("name"),
        function.get("arguments"),
    )


def _interrupted() -> ProviderError:
    return ProviderError("The model's answer was interrupted: it ended without a finish reason.", code=INTERRUPTED)


def _malformed() -> ProviderError:
    return ProviderError("The model provider's answer is not a chat completion.", code=MALFORMED)
