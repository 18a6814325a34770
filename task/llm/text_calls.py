"""Turn the calls that a model wrote into its text back into calls, while the text streams."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import cached_property

import orjson

from task.conversation.messages import FunctionCall, Message, Role
from task.conversation.pruning import message_tokens, text_tokens
from task.llm.base import (
    Accumulator,
    Delta,
    Finish,
    ModelOptions,
    TextDelta,
    ToolCallDelta,
    ToolSchema,
    Usage,
    new_call_id,
)
from task.llm.call_texts import HEAD, OfferedTools, Opening
from task.llm.window import schema_tokens

LONGEST = 2**18  # characters of a call that is waited for
DROPPED = 400  # characters after a call for whose end the stream is still read, because it brings the usage
FENCE, THOUGHT = "```", "<think>"
NEAR = 80  # characters in front of a bracket that show whether it is quoted
_START = re.compile(r"`+|[{\[<]")
_QUOTED = re.compile(r"(?:[\"'`=(\\]|(?:\A|\n)[ \t>]*>)[ \t]*\Z")
_FENCE_LINE = re.compile(r"`{3,}[^\n`]*\n")
_ORDINARY_JSON = re.compile(r"[{\[]\s*[\"{\[]")
# `cut`: the next character decides what this is.
_TOKEN = re.compile(r'\\.|(?P<cut>\\\Z)|"|[\[\]{}]', re.DOTALL)


def with_text_calls(
    deltas: AsyncGenerator[Delta], messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
) -> AsyncGenerator[Delta]:
    """The deltas of a request for these messages and tools, with calls in place of the text that contains them.

    What may become a call is held back until that is decided. What the model wrote after its calls is dropped: it has
    not seen their results.
    """
    asked_for_json = options.extra.get("response_format", {}).get("type", "text") != "text"
    if not tools or options.tool_choice == "none" or asked_for_json:
        return deltas
    return _TextCallAnswer(deltas, messages, tools).deltas()


class _TextCallAnswer:
    def __init__(self, deltas: AsyncGenerator[Delta], messages: Sequence[Message], tools: Sequence[ToolSchema]) -> None:
        self._deltas, self._messages, self._tools = deltas, messages, tools
        self._scanner = TextScanner(OfferedTools(tools), messages)
        self._real = Accumulator()  # the calls of the provider itself
        # Calls in text and those of the provider are numbered together: clients put calls together by their indexes.
        self._next = self._shift = 0

    async def deltas(self) -> AsyncGenerator[Delta]:
        scanner, written = self._scanner, 0
        async with aclosing(self._deltas) as deltas:
            async for delta in deltas:
                if isinstance(delta, TextDelta):
                    written += len(delta.text)
                    for found in self._numbered(scanner.feed(delta.text)):
                        yield found
                    if scanner.ended and self._real.empty:
                        break
                    continue
                if isinstance(delta, ToolCallDelta):
                    for found in self._numbered(scanner.called()):
                        yield found
                    self._real.add(delta)
                    if delta.index is not None:
                        index = delta.index + self._shift
                        self._next, delta = max(self._next, index + 1), replace(delta, index=index)
                elif isinstance(delta, Finish):
                    for found in self._numbered(scanner.close()):
                        yield found
                    delta = Finish("tool_calls") if scanner.found and delta.reason == "stop" else delta
                yield delta
            else:
                return
        # The provider counts only answers that it may finish.
        prompt = sum(map(message_tokens, self._messages)) + schema_tokens(self._tools)
        yield Usage(prompt, text_tokens(" " * written))
        yield Finish("length" if scanner.too_long else "tool_calls")

    def _numbered(self, found: Iterable[Delta]) -> Iterator[Delta]:
        for delta in found:
            if isinstance(delta, ToolCallDelta):
                written = Accumulator()
                written.add(delta)
                messages = (self._real.message(), written.message())
                calls = [call.function for message in messages for call in message.tool_calls]
                *made, wanted = [(call.name, orjson.loads(call.arguments)) for call in calls]
                if wanted in made:  # some models write the calls again that the provider has made already
                    continue
                delta = replace(delta, index=self._next)
                self._next, self._shift = self._next + 1, self._shift + 1
            yield delta


class TextScanner:
    """Finds the calls in a text that arrives in pieces; how it is cut makes no difference."""

    def __init__(self, offered: OfferedTools, messages: Sequence[Message]) -> None:
        self._offered, self._messages = offered, messages
        self.found = False  # whether there was a call
        self.too_long = False
        self._over = False  # whether something else came after the calls
        self._dropped = 0
        self._closing = False
        self._rest = ""  # not decided yet
        self._sent = ""  # the end of what is
        self._end: Brackets | Until | None = None  # of what is passed on or held back as a whole
        self._candidate: Opening | None = None  # what is held back
        self._held: list[str] = []
        self._length = 0
        self._last: Opening | None = None  # the last call
        self._made: list[FunctionCall] = []

    @property
    def ended(self) -> bool:
        """Whether there is nothing to wait for any more."""
        return self.too_long or self._dropped > DROPPED

    def feed(self, text: str) -> Iterator[Delta]:
        """What the text decides."""
        text, self._rest = self._rest + text, ""
        while text and not self._over:
            step = self._passed if self._end else self._follow if self.found else self._look
            text = yield from step(text)
        self._dropped += len(text)

    def called(self) -> Iterator[Delta]:
        """What a call from the provider decides about the text in front of it."""
        yield from self.close()
        self.found = True

    def close(self) -> Iterator[Delta]:
        """What the end of the text decides."""
        self._closing = True
        yield from self.feed("")
        if self._candidate is not None:
            yield from self._decide(self._candidate, complete=False)
        self._end, self._closing = None, False

    def _look(self, text: str) -> Generator[Delta, None, str]:
        # In prose: sends what cannot begin a call; the rest is looked at next, in the way that `_end` says.
        for mark in _START.finditer(text):
            place = mark.start()
            if _QUOTED.search((self._sent + text[max(0, place - NEAR) : place])[-NEAR:]) and mark[0] in "{[":
                continue
            opening = self._offered.opening(text[place : place + HEAD])
            if opening == "undecided" and not self._closing:
                yield from self._send(text[:place])
                self._rest = text[place:]
                return ""
            if isinstance(opening, Opening):
                yield from self._send(text[:place])
                return self._hold(opening, text[place:])
            # What contains no calls, whatever stands in it: code, thoughts, JSON that is not a call.
            head = text[place : place + HEAD]
            if fence := _FENCE_LINE.match(head):
                self._end, start = Until(FENCE), place + fence.end()
            elif head.startswith(THOUGHT):
                self._end, start = Until("</think>"), place + len(THOUGHT)
            elif _ORDINARY_JSON.match(head):
                self._end, start = Brackets(), place
            else:
                continue
            yield from self._send(text[:start])
            return text[start:]
        yield from self._send(text)
        return ""

    def _follow(self, text: str) -> Generator[Delta, None, str]:
        # After a call: whatever neither separates it from another one nor begins one ends the answer.
        yield from ()
        opening = self._offered.opening(text[:HEAD], self._last)
        if opening == "undecided" and not self._closing:
            self._rest = text
            return ""
        if isinstance(opening, Opening):
            return self._hold(opening, text)
        self._over = True
        return text

    def _hold(self, opening: Opening, text: str) -> str:
        self._candidate, self._end = opening, Brackets()
        self._held, self._length = [text[: opening.start]], 0
        return text[opening.start :]

    def _passed(self, text: str) -> Generator[Delta, None, str]:
        assert self._end is not None
        end = self._end.feed(text)
        piece, rest = (text, "") if end is None else (text[:end], text[end:])
        if self._candidate is None:
            yield from self._send(piece)
            self._end = None if end is not None else self._end
            return rest
        self._held.append(piece)
        self._length += len(piece)
        if end is not None:
            yield from self._decide(self._candidate, complete=True)
        elif self._length > LONGEST:
            yield from self._decide(self._candidate, complete=False)
            self.too_long = self._over = self.found
        return rest

    def _decide(self, candidate: Opening, *, complete: bool) -> Iterator[Delta]:
        lead, text = self._held[0], "".join(self._held[1:])
        self._candidate = self._end = None
        self._held = []
        calls = (self._offered.calls if complete else self._offered.cut_off)(candidate, text)
        if calls and _squeezed(lead[lead.rfind(candidate.name) :] + text) not in self._read:
            self.found, self._last = True, candidate
            for call in calls:
                if call in self._made:  # a model that repeats itself does not stop by itself
                    self._over = True
                    return
                self._made.append(call)
                yield ToolCallDelta(None, new_call_id(), call.name, call.arguments)
            return
        self._over = self._over or self.found
        yield from self._send(lead + text)
        if candidate.fenced:
            self._end = Until(FENCE)

    def _send(self, text: str) -> Iterator[Delta]:
        if self.found:
            self._dropped += len(text)
        elif text:
            self._sent = (self._sent + text)[-NEAR:]
            yield TextDelta(text)

    @cached_property
    def _read(self) -> str:
        return "\0".join(_squeezed(message.text()) for message in self._messages if message.role is not Role.ASSISTANT)


def _squeezed(text: str) -> str:
    # A quotation may be indented or escaped in another way.
    return "".join(text.replace("\\", "").split())


@dataclass(slots=True)
class Brackets:
    """Finds in JSON that arrives in pieces where the bracket that it begins with is closed."""

    _depth: int = 0
    _quoted: bool = False
    _carried: str = ""

    def feed(self, piece: str) -> int | None:
        """Where in this piece the text ends."""
        text, before = self._carried + piece, len(self._carried)
        self._carried = ""
        for token in _TOKEN.finditer(text):
            mark = token[0]
            if token["cut"]:
                self._carried = mark
            elif mark == '"':
                self._quoted = not self._quoted
            elif mark[0] != "\\" and not self._quoted:
                self._depth += 1 if mark in "[{" else -1
                if self._depth <= 0:
                    return token.end() - before
        return None


class Until:
    """Finds in a text that arrives in pieces where `end` ends."""

    def __init__(self, end: str) -> None:
        self._end, self._tail = end, ""

    def feed(self, piece: str) -> int | None:
        """Where in this piece the text ends."""
        text = self._tail + piece
        if (place := text.find(self._end)) >= 0:
            return place + len(self._end) - len(self._tail)
        self._tail = text[-len(self._end) + 1 :]
        return None
