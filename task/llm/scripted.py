"""A chat model that plays a script: for tests, replayed traces and the labelled demo."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from task.conversation.inputs import ATTACHED
from task.conversation.messages import Message, Role
from task.errors import ProviderError
from task.llm.base import (
    DEMO_NAME,
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

_WORD = re.compile(r"\S+\s*|\s+")
_FILE = re.compile(r"- (?P<title>.*) \((?P<type>[^()]*)\): (?P<url>\S+)\Z")
_ENDING = re.compile(r"\.(csv|tsv|txt|md|json|html?|pdf|docx|xlsx|pptx)\Z", re.IGNORECASE)
_READER = "file_content_extraction_tool"
_RESULT_LIMIT = 2000  # characters of tool results that the demo shows
_DEMO = "I am a scripted demo, not a real model"
_CONNECT = (
    "To connect a real model, set `OPENAI_API_KEY` (with `OPENAI_BASE_URL` for any OpenAI-compatible server) or "
    "`DIAL_ENDPOINT`, and start again."
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


def demo() -> ScriptedModel:
    """The model that answers where no real one is connected."""
    return ScriptedModel(name=DEMO_NAME, then=demo_reply, keep_requests=False)


def demo_reply(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """The demo's answer: the results of tools, or the call that reads each attached file, or what it is.

    It reads nothing into a question: the last message's role, its files and the offered tools decide.
    """
    offered = [str(tool["function"]["name"]) for tool in tools]
    last = messages[-1] if messages else Message(Role.USER)
    if last.role is Role.TOOL:
        results = list(takewhile(lambda message: message.role is Role.TOOL, reversed(messages)))
        text = "\n\n".join(f"{message.name or 'tool'}:\n{message.text()}" for message in reversed(results))
        if len(text) > _RESULT_LIMIT:
            text = f"{text[:_RESULT_LIMIT]}\n[cut, {len(text)} characters in all]"
        quoted = "\n".join(f"> {line}".rstrip() for line in text.splitlines())
        limit = "I show what a tool returned and cannot answer your question from it"
        return _by_word(f"The tool gave back:\n\n{quoted}\n\n{_DEMO}: {limit}. {_CONNECT}\n")
    if last.role is Role.USER and _READER in offered and (files := _readable(last)):
        return Reply(tuple(ToolCallDelta(n, None, _READER, {"file_url": url}) for n, url in enumerate(files)))
    tip = "Attach a text, CSV or JSON file and I will show what the matching tool returns"
    listed = ", ".join(f"`{name}`" for name in offered) or "none"
    return _by_word(f"{_DEMO}, so I cannot answer this. {tip}. Tools offered to me: {listed}.\n\n{_CONNECT}\n")


def _by_word(text: str) -> Reply:
    return says(*_WORD.findall(text), pause=0.003)


def _readable(message: Message) -> list[str]:
    # The addresses of the attached files that the tool can read.
    _, found, block = message.text().rpartition(f"{ATTACHED}\n")
    files = [match for line in block.splitlines() if found and (match := _FILE.match(line.strip()))]
    return [
        file["url"]
        for file in files
        if file["type"].startswith("text/") or any(_ENDING.search(file[part]) for part in ("title", "url"))
    ]
