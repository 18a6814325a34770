"""A chat model that plays a script: for tests, replayed traces and the labelled demo."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from string import Template
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from task.conversation.inputs import ATTACHED
from task.conversation.messages import Message, Role
from task.errors import ProviderError, SettingsError
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

_WORD = re.compile(r"\S+\s*|\s+")
_ATTACHED = re.compile(r"^- (?P<title>.*) \((?P<type>[^()]*)\): (?P<url>\S+)$")
_RESULT_LIMIT = 2000  # characters of tool results that a template shows


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

    @classmethod
    def from_file(cls, path: Path, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> ScriptedModel:
        """The model that a YAML file describes; shape: `ScriptFile`.

        Raises:
            SettingsError: the file is missing or not a script; one line.
        """
        try:
            script = ScriptFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
        except (OSError, yaml.YAMLError) as error:
            raise SettingsError(f"{path.name} cannot be read as a script: {' '.join(str(error).split())}") from error
        except ValidationError as error:
            fault = error.errors()[0]
            raise SettingsError(f"{path.name}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}") from error
        replies = [data.reply() for data in script.replies]
        return cls(*replies, name=script.name, then=script.reply, keep_requests=False, sleep=sleep)

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
            raise _exhausted(f"the script has no reply number {number + 1}")
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


def _exhausted(problem: str) -> ProviderError:
    return ProviderError(problem, status_code=400, code="script_exhausted")


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CallData(_Data):
    """One call; the strings in `arguments` are templates."""

    tool: str
    arguments: dict[str, Any] = {}


class ReplyData(_Data):
    """One answer: text, whole or in pieces, then calls.

    `by_word` cuts the text into words; `pause`: seconds between pieces; `usage`: prompt and completion tokens.
    """

    text: str | list[str] = ""
    reasoning: str = ""
    call: list[CallData] = []
    pause: float = 0.0
    by_word: bool = False
    usage: tuple[int, int] | None = None
    finish: str | None = None

    def reply(self, values: Mapping[str, str] | None = None) -> Reply:
        """The reply; with `values`, `$name` in texts and arguments is replaced."""

        def fill(value: Any) -> Any:
            return Template(value).safe_substitute(values) if isinstance(value, str) and values is not None else value

        pieces = [self.text] if isinstance(self.text, str) else self.text
        pieces = [fill(piece) for piece in pieces if piece]
        if self.by_word:
            pieces = [word for piece in pieces for word in _WORD.findall(piece)]
        reply = says(
            *pieces, pause=self.pause, reasoning=self.reasoning, usage=Usage(*self.usage) if self.usage else None
        )
        for call in self.call:
            reply &= wants(call.tool, **{name: fill(value) for name, value in call.arguments.items()})
        return reply & Reply((Finish(self.finish),)) if self.finish else reply


class When(_Data):
    """A rule's condition: the last message's role, a file attached to it (extension or MIME type), a tool offered."""

    last: Literal["user", "tool"] | None = None
    attached: list[str] | None = None
    tool: str | None = None


class ScriptRule(ReplyData):
    """A reply to every request that `when` fits. With `attached`, its calls are made once per fitting file."""

    when: When = When()


class ScriptFile(_Data):
    """A scripted model: its name, replies for the first requests, then the first rule that fits.

    Templates may use `$tools` (names offered), `$results` (the newest tool results, quoted and cut) and, if the rule
    requires an attachment, `$title`, `$type` and `$url`.
    """

    name: str
    replies: list[ReplyData] = []
    rules: list[ScriptRule] = []

    def reply(self, messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
        offered = [str(tool["function"]["name"]) for tool in tools]
        last = messages[-1] if messages else None
        results: list[str] = []
        for message in takewhile(lambda message: message.role is Role.TOOL, reversed(messages)):
            results.insert(0, f"{message.name or 'tool'}:\n{message.text()}")
        text = "\n\n".join(results)
        if len(text) > _RESULT_LIMIT:
            text = f"{text[:_RESULT_LIMIT]}\n[cut, {len(text)} characters in all]"
        quoted = "\n".join(f"> {line}".rstrip() for line in text.splitlines())
        values = {"tools": ", ".join(f"`{name}`" for name in offered) or "none", "results": quoted}
        for rule in self.rules:
            when = rule.when
            if (when.last and (last is None or last.role.value != when.last)) or (
                when.tool and when.tool not in offered
            ):
                continue
            if when.attached is None:
                return rule.reply(values)
            if files := _attached(last, when.attached):
                first, *more = (rule.reply({**values, **file}) for file in files)
                for reply in more:
                    first &= Reply(reply.calls)
                return first
        raise _exhausted(f"no rule of the script {self.name} fits")


def _attached(message: Message | None, kinds: Sequence[str]) -> list[dict[str, str]]:
    _, found, block = message.text().rpartition(f"{ATTACHED}\n") if message else ("", "", "")
    lines = [_ATTACHED.match(line) for line in block.strip().splitlines()] if found else []
    files = [line.groupdict() for line in lines if line is not None]
    endings = tuple(f".{kind}" for kind in kinds if "/" not in kind)
    return [
        file
        for file in files
        if file["type"] in kinds or file["title"].lower().endswith(endings) or file["url"].lower().endswith(endings)
    ]
