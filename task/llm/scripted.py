"""A chat model that plays a script: for tests, and for the labelled demo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from task.conversation.messages import Message
from task.errors import ProviderError
from task.llm.accumulator import new_call_id
from task.llm.base import Delta, Finish, ModelOptions, ReasoningDelta, TextDelta, ToolCallDelta, ToolSchema, Usage


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds of silence inside an answer."""

    seconds: float


Event = Delta | Pause | ProviderError


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as data: deltas in order, pauses between them, or an error in their place.

    A reply that ends without a `Finish` ends well: with `tool_calls` where it has calls, else with `stop`.
    """

    events: tuple[Event, ...]

    def __and__(self, other: Reply) -> Reply:
        """This reply and then `other`, as one answer; calls are numbered through."""
        shift = len(self.calls)
        return Reply((*self.events, *(_shifted(event, shift) for event in other.events)))

    @property
    def calls(self) -> tuple[ToolCallDelta, ...]:
        return tuple(event for event in self.events if isinstance(event, ToolCallDelta))

    @property
    def finish(self) -> Finish:
        told = next((event for event in self.events if isinstance(event, Finish)), None)
        return told or Finish("tool_calls" if self.calls else "stop")


def _shifted(event: Event, shift: int) -> Event:
    if not isinstance(event, ToolCallDelta) or event.index is None:
        return event
    return replace(event, index=event.index + shift)


def says(*pieces: str, pause: float = 0.0, reasoning: str = "", usage: Usage | None = None) -> Reply:
    """Text in pieces, `pause` seconds before each but the first."""
    events: list[Event] = [ReasoningDelta(reasoning)] if reasoning else []
    for number, piece in enumerate(pieces):
        if pause and number:
            events.append(Pause(pause))
        events.append(TextDelta(piece))
    return Reply((*events, usage) if usage else tuple(events))


def wants(tool: str, /, **arguments: Any) -> Reply:
    """One call of `tool`; join several with `&`."""
    return Reply((ToolCallDelta(0, None, tool, arguments),))


def fails(error: ProviderError) -> Reply:
    """An error; after `&` it breaks the answer off in the middle."""
    return Reply((error,))


Chooser = Callable[[Sequence[Message], Sequence[ToolSchema]], Reply]


class ScriptedModel:
    """Plays its replies in order, then asks `then`; keeps every request unless told not to.

    Raises:
        ProviderError: the script says so, or it has come to its end.
    """

    def __init__(
        self,
        *replies: Reply,
        name: str = "scripted",
        then: Chooser | None = None,
        keep_requests: bool = True,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.requests: list[list[Message]] = []
        self.tools: list[list[ToolSchema]] = []
        self.options: list[ModelOptions] = []
        self._name = name
        self._replies = replies
        self._then = then
        self._keep_requests = keep_requests
        self._sleep = sleep
        self._asked = 0

    @classmethod
    def from_file(cls, path: Path, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> ScriptedModel:
        """The model that a YAML file describes; shape: `task.llm.script_file.ScriptFile`."""
        from task.llm.script_file import load_script

        script = load_script(path)
        replies = script.first_replies()
        return cls(*replies, name=script.name, then=script.reply, keep_requests=False, sleep=sleep)

    @property
    def name(self) -> str:
        return self._name

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        if self._keep_requests:
            self.requests.append(list(messages))
            self.tools.append(list(tools))
            self.options.append(options)
        reply = self._next_reply(messages, tools)
        ids: dict[int | None, str] = {}
        for event in reply.events:
            match event:
                case Pause(seconds):
                    await self._sleep(seconds)
                case ProviderError():
                    raise event
                case ToolCallDelta(index=index, id=None):
                    yield replace(event, id=ids.setdefault(index, new_call_id()))
                case Finish():
                    pass
                case _:
                    yield event
        yield reply.finish

    def _next_reply(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        number = self._asked
        self._asked += 1
        if number < len(self._replies):
            return self._replies[number]
        if self._then is not None:
            return self._then(messages, tools)
        raise ProviderError(f"the script has no reply number {number + 1}", status_code=400, code="script_exhausted")
