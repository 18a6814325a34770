"""A chat model that plays a script: for tests, replayed traces and the labelled demo."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from task.conversation.messages import Message
from task.errors import ProviderError
from task.llm.base import (
    Delta,
    Finish,
    ModelOptions,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolSchema,
    Usage,
    new_call_id,
)


@dataclass(frozen=True, slots=True)
class Pause:
    """Seconds of silence inside an answer."""

    seconds: float


Event = Delta | Pause | ProviderError


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer as data: deltas in order, pauses between them, or an error that interrupts it.

    Without a `Finish` it ends with `tool_calls` if it has calls, else with `stop`.
    """

    events: tuple[Event, ...]

    def __and__(self, other: Reply) -> Reply:
        """This reply and then `other`, as one answer; calls are numbered consecutively."""
        shift = len(self.calls)
        numbered = (
            replace(event, index=event.index + shift)
            if isinstance(event, ToolCallDelta) and event.index is not None
            else event
            for event in other.events
        )
        return Reply((*self.events, *numbered))

    @property
    def calls(self) -> tuple[ToolCallDelta, ...]:
        return tuple(event for event in self.events if isinstance(event, ToolCallDelta))

    @property
    def finish(self) -> Finish:
        finish = next((event for event in self.events if isinstance(event, Finish)), None)
        return finish or Finish("tool_calls" if self.calls else "stop")


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


Chooser = Callable[[Sequence[Message], Sequence[ToolSchema]], Reply]


class ScriptedModel:
    """Plays its replies in order, then those of `then`; records every request with `keep_requests`.

    Raises:
        ProviderError: it is the script's next event, or the script has ended.
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
        self.name = name
        self._replies = replies
        self._then = then
        self._keep_requests = keep_requests
        self._sleep = sleep
        self._asked = 0

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        if self._keep_requests:
            self.requests.append(list(messages))
            self.tools.append(list(tools))
            self.options.append(options)
        number = self._asked
        self._asked += 1
        if number < len(self._replies):
            reply = self._replies[number]
        elif self._then is not None:
            reply = self._then(messages, tools)
        else:
            problem = f"the script has no reply number {number + 1}"
            raise ProviderError(problem, status_code=400, code="script_exhausted")
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
