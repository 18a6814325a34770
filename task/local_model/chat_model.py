"""A small model on this machine: tools are offered as a JSON schema, decisions come back as calls, prose streams."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus

import aiohttp
import orjson

from task.conversation.messages import Message
from task.errors import ProviderError
from task.llm.accumulator import new_call_id
from task.llm.base import Delta, Finish, ModelOptions, ReasoningDelta, TextDelta, ToolCallDelta, ToolSchema, Usage
from task.llm.chat_request import BASIC
from task.llm.failures import CONNECTION_FAILED, CONTEXT_LENGTH, INTERRUPTED
from task.llm.openai import OpenAIChatModel
from task.llm.transport import Retries
from task.local_model.decision import REPLY, Decision, addresses_in, decision_schema, decisions_of
from task.local_model.prompt import ANSWER, deciding, fitted, offered, predicted_prefix, rendered

ONE_TRY = Retries(attempts=1)
PROFILE = replace(BASIC, streams_usage=True)
DECISION_TOKENS = 1024  # a call may contain a whole program
TEMPERATURE = 0.2
LOST = frozenset({CONNECTION_FAILED, INTERRUPTED})
PAUSES = (0.3, 2.0)  # seconds before the retries: what restarts the process must have noticed that it died
SAVE = "/slots/0?action=save"  # the server works on one request at a time, in slot 0
SAVE_SECONDS = 20
BUSY = "The local model is busy: {waiting} requests are waiting already. Try again in a minute."


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The current address of the model's server, and the key it requires."""

    url: str
    key: str


Engine = Callable[[], AsyncGenerator["str | Endpoint"]]  # what is waited for, in words; at the end the address


class Line:
    """First come, first served; up to `waiting` requests wait behind the one that is served."""

    def __init__(self, waiting: int = 8) -> None:
        self._limit = waiting + 1
        self._places: list[QueuePosition] = []

    @contextmanager
    def place(self) -> Generator[QueuePosition]:
        """A place at the end, left with the block.

        Raises:
            ProviderError: the line is full.
        """
        if len(self._places) >= self._limit:
            text = BUSY.format(waiting=self._limit - 1)
            raise ProviderError(text, status_code=503, code="busy", display_message=text)
        place = QueuePosition(self._places)
        self._places.append(place)
        try:
            yield place
        finally:
            self._places.remove(place)
            for other in self._places:
                other.moved.set()


class QueuePosition:
    def __init__(self, places: list[QueuePosition]) -> None:
        self._places = places
        self.moved = asyncio.Event()

    async def turn(self) -> AsyncGenerator[str]:
        """Ends when it is this one's turn; until then reports the position whenever it changes."""
        reported = 0
        while True:
            self.moved.clear()  # before looking: the line may move while a position is reported
            if not (ahead := self._places.index(self)):
                return
            if ahead != reported:
                reported = ahead
                yield f"Waiting for the local model: {ahead} ahead of this request."
            await self.moved.wait()


@dataclass(frozen=True, slots=True)
class LocalChatModel:
    """A model with a window of `context` tokens, one request at a time; the others wait in `line`.

    `reply_bias` is added to the logit of a reply when the model decides. `ReasoningDelta`s say what a request waits
    for.
    """

    session: aiohttp.ClientSession
    engine: Engine
    name: str
    context: int = 8192
    answer_tokens: int = 1024
    reply_bias: float = 0.0
    line: Line = field(default_factory=Line)

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        with self.line.place() as place:
            async for words in place.turn():
                yield ReasoningDelta(f"{words}\n")
            usable = () if options.tool_choice == "none" else offered(tools)
            request = _Request(self, messages, usable, options)
            async with aclosing(request.deltas()) as deltas:
                async for delta in deltas:
                    yield delta

    async def warm_up(self, save_as: str = "") -> bool:
        """Let the model read the common beginning of conversations before the first one comes.

        Its server then saves the state after that, and nothing of a conversation, in the file `save_as` of its folder
        for states. False: it could not, which costs only time.

        Raises:
            ProviderError: the model does not run.
        """
        options = ModelOptions(max_tokens=1)
        with self.line.place() as place:
            async for _ in place.turn():
                pass
            async for _ in _Request(self, [predicted_prefix()], (), options).answer(None, options):
                pass
            return bool(save_as) and await self._save_state(save_as)

    async def _save_state(self, name: str) -> bool:
        endpoint = [stage async for stage in self.engine() if isinstance(stage, Endpoint)][-1]
        limit = aiohttp.ClientTimeout(total=SAVE_SECONDS)
        # A connection of its own: the server closes those that have streamed, and a pool may not have noticed yet.
        headers, none = {"Authorization": f"Bearer {endpoint.key}"}, aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(headers=headers, timeout=limit, cookie_jar=none) as session:
            try:
                async with session.post(f"{endpoint.url}{SAVE}", json={"filename": name}) as response:
                    return response.status == HTTPStatus.OK
            except (aiohttp.ClientError, TimeoutError):
                return False


class _Request:
    """One request of the agent: a decision where there are tools, then the answer in prose."""

    def __init__(
        self, model: LocalChatModel, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> None:
        self._model, self._messages, self._tools, self._options = model, messages, tools, options
        self._answer_tokens = min(options.max_tokens or model.answer_tokens, model.context // 2)
        self._decision_tokens = min(DECISION_TOKENS, model.context // 4)
        self._room = model.context - max(self._answer_tokens, self._decision_tokens)
        self._usage = Usage()

    async def deltas(self) -> AsyncGenerator[Delta]:
        decision = Decision()
        if self._tools:
            async for delta in self._decide(decision):
                yield delta
        if not decision.calls and not decision.prose:
            async for delta in self._prose():
                yield delta
            return
        for index, (name, arguments) in enumerate(decision.calls):
            yield ToolCallDelta(index, new_call_id(), name, orjson.dumps(arguments).decode())
        if decision.prose:
            yield TextDelta(decision.prose)
        yield self._usage
        yield Finish("tool_calls" if decision.calls else "stop")

    async def _decide(self, decision: Decision) -> AsyncGenerator[ReasoningDelta]:
        # Fill `decision`; yields only what is waited for
        addresses = addresses_in(self._messages)
        schema = decision_schema(self._tools, addresses.unread(self._messages), self._options.tool_choice)
        if schema is None:
            return
        options = ModelOptions(
            temperature=0,
            max_tokens=self._decision_tokens,
            extra={
                "response_format": {"type": "json_schema", "json_schema": {"name": "next", "schema": schema}},
                "logit_bias": [[REPLY, self._model.reply_bias]],
            },
        )
        pieces: list[str] = []
        async with aclosing(self.answer(deciding(self._messages, addresses.files, self._tools), options)) as deltas:
            async for delta in deltas:
                if isinstance(delta, TextDelta):
                    pieces.append(delta.text)
                elif isinstance(delta, ReasoningDelta):
                    yield delta
                elif isinstance(delta, Usage):
                    self._usage += delta
        decisions_of("".join(pieces), self._tools, self._messages, decision)

    async def _prose(self) -> AsyncGenerator[Delta]:
        options = replace(
            self._options,
            temperature=TEMPERATURE if self._options.temperature is None else self._options.temperature,
            max_tokens=self._answer_tokens,
            tool_choice=None,
        )
        async with aclosing(self.answer(ANSWER if self._tools else None, options)) as deltas:
            async for delta in deltas:
                yield delta + self._usage if isinstance(delta, Usage) else delta

    async def answer(self, tail: str | None, options: ModelOptions) -> AsyncGenerator[Delta]:
        """The model's answer to the conversation and `tail`.

        Until the first word it is retried: when the model's process was lost, and once with a shorter conversation when
        the model finds it too long.
        """
        room, started, pauses = self._room, False, iter(PAUSES)
        while True:
            plain = rendered(fitted(self._messages, room), self._tools, tail)
            try:
                async with aclosing(self._attempt(plain, options)) as deltas:
                    async for delta in deltas:
                        started = started or not isinstance(delta, ReasoningDelta)
                        yield delta
            except ProviderError as error:
                if not started and error.code == CONTEXT_LENGTH and room == self._room:
                    room = room // 2
                elif not started and error.code in LOST and (pause := next(pauses, None)):
                    await asyncio.sleep(pause)
                else:
                    raise
            else:
                return

    async def _attempt(self, plain: Sequence[Message], options: ModelOptions) -> AsyncGenerator[Delta]:
        async with aclosing(self._model.engine()) as stages:
            async for stage in stages:
                if isinstance(stage, str):
                    yield ReasoningDelta(f"{stage}\n")
                    continue
                model = OpenAIChatModel(
                    self._model.session, f"{stage.url}/v1", stage.key, self._model.name, PROFILE, retries=ONE_TRY
                )
                async with aclosing(model.stream(plain, (), options)) as deltas:
                    async for delta in deltas:
                        yield delta
