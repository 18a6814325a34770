"""The model of a process on this machine: small models' profile, one request at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus

import aiohttp

from task.conversation.messages import Message
from task.errors import ProviderError
from task.llm.base import ChatModel, Delta, ModelOptions, ToolSchema, Waiting
from task.llm.chat_request import BASIC
from task.llm.openai import OpenAIChatModel
from task.llm.transport import Retries
from task.local.model.prompt import predicted_prefix
from task.local.model.small_model import SmallModel

ONE_TRY = Retries(attempts=1)
PROFILE = replace(BASIC, streams_usage=True, refused=frozenset({"reasoning_effort", "top_logprobs"}))
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
        self._waiting = waiting
        self._places: list[asyncio.Event] = []  # each is set whenever the line has moved

    @contextmanager
    def place(self) -> Generator[AsyncGenerator[str]]:
        """A place at the end, left with the block: reports its position whenever that changes, until it is the first.

        Raises:
            ProviderError: the line is full.
        """
        if len(self._places) > self._waiting:
            text = BUSY.format(waiting=self._waiting)
            raise ProviderError(text, status_code=503, code="busy", display_message=text)
        place = asyncio.Event()
        self._places.append(place)
        try:
            yield self._turn(place)
        finally:
            self._places.remove(place)
            for other in self._places:
                other.set()

    async def _turn(self, place: asyncio.Event) -> AsyncGenerator[str]:
        reported = 0
        while True:
            place.clear()  # before looking: the line may move while a position is reported
            if not (ahead := self._places.index(place)):
                return
            if ahead != reported:
                reported = ahead
                yield f"Waiting for the local model: {ahead} ahead of this request"
            await place.wait()


@dataclass(frozen=True, slots=True)
class LocalChatModel:
    """A model with a window of `context` tokens, one request at a time; the others wait in `line`."""

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
        with self.line.place() as turn:
            async for words in turn:
                yield Waiting(words)
            async with aclosing(self._small().stream(messages, tools, options)) as deltas:
                async for delta in deltas:
                    yield delta

    async def warm_up(self, save_as: str = "") -> bool:
        """Let the model read the common beginning of conversations before the first one comes.

        Its server then saves the state after that, and nothing of a conversation, in the file `save_as` of its folder
        for states. False: it could not, which costs only time.

        Raises:
            ProviderError: the model does not run.
        """
        with self.line.place() as turn:
            async for _ in turn:
                pass
            await self._small().read([predicted_prefix()])
            if not save_as:
                return False
            endpoint = [stage async for stage in self.engine() if isinstance(stage, Endpoint)][-1]
            limit = aiohttp.ClientTimeout(total=SAVE_SECONDS)
            # A connection of its own: the server closes those that have streamed, and a pool may not have noticed yet.
            headers, none = {"Authorization": f"Bearer {endpoint.key}"}, aiohttp.DummyCookieJar()
            async with aiohttp.ClientSession(headers=headers, timeout=limit, cookie_jar=none) as session:
                try:
                    async with session.post(f"{endpoint.url}{SAVE}", json={"filename": save_as}) as response:
                        return response.status == HTTPStatus.OK
                except (aiohttp.ClientError, TimeoutError):
                    return False

    def _small(self) -> SmallModel:
        return SmallModel(self._connected, self.name, self.context, self.answer_tokens, self.reply_bias, pauses=PAUSES)

    async def _connected(self) -> AsyncGenerator[Waiting | ChatModel]:
        async with aclosing(self.engine()) as stages:
            async for stage in stages:
                if isinstance(stage, str):
                    yield Waiting(stage)
                else:
                    yield OpenAIChatModel(
                        self.session, f"{stage.url}/v1", stage.key, self.name, PROFILE, retries=ONE_TRY
                    )
