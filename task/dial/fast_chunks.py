"""The DIAL SDK's chat completion route with less work per chunk: the same events, sent together when several wait.

The SDK renders each chunk a second time for its debug log, starts a task for each to keep its heartbeat, and sends each
on its own. Here all that waits leaves at once, the heartbeat is one timer, and what is the same around every piece of
text is rendered once. This overrides what the SDK keeps private; pyproject.toml pins the versions it was tested with.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, closing
from functools import cached_property
from typing import Any, cast

import orjson
from aidial_sdk import DIALApp, HTTPException
from aidial_sdk.chat_completion import ChatCompletion, Choice, chunks
from aidial_sdk.chat_completion import Request as ChatRequest
from aidial_sdk.chat_completion import Response as ChatResponse
from aidial_sdk.chat_completion.chunks import BaseChunk, ContentChunk, EndChoiceChunk, EndChunk, ExceptionChunk
from aidial_sdk.exceptions import RuntimeServerError
from aidial_sdk.utils.errors import RUNTIME_ERROR_MESSAGE
from aidial_sdk.utils.merge_chunks import merge
from aidial_sdk.utils.streaming import to_block_response
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

_DONE = b"data: [DONE]\n\n"
_HEARTBEAT = b": heartbeat\n\n"
# Exact types: to ask whether a chunk is of an abstract class is slow.
_LATE = frozenset({chunks.UsageChunk, chunks.UsagePerModelChunk, chunks.DiscardedMessagesChunk})
_ENDS = frozenset({EndChunk, ExceptionChunk})
# No text of the answer: they wait a moment for what follows, and leave with it.
_STAGE = {chunks.StartStageChunk, chunks.NameStageChunk, chunks.ContentStageChunk, chunks.FinishStageChunk}
_PATIENT = frozenset({chunks.StartChoiceChunk, *_STAGE})
PATIENCE = 0.005  # seconds

logger = logging.getLogger(__name__)

Producer = Callable[[ChatRequest, ChatResponse], Coroutine[Any, Any, Any]]
Queued = BaseChunk | ExceptionChunk | EndChunk | bytes  # bytes: a heartbeat


class FastDialApp(DIALApp):
    """A DIALApp whose chat completions cost less; everything else is the SDK's."""

    def _chat_completion(
        self, deployment_id: str | None, impl: ChatCompletion, *, heartbeat_interval: float | None
    ) -> Any:  # a handler, as the SDK's method returns it
        async def handler(original_request: Request) -> Response:
            request = await self._parse_request(ChatRequest, original_request, deployment_id)
            response = FastResponse(request)
            if request.stream:
                events = response.events(impl.chat_completion, heartbeat_interval)
                answer: Response = ChunkStream(await anext(events), events)
            else:
                async with _running(response._run_producer(impl.chat_completion)):
                    block = await to_block_response(response._generate_chunk_stream())
                answer = Response(_json(block), media_type="application/json")
            for name, value in response.headers:
                answer.headers.append(name, value)
            return answer

        return handler


class Chunks:
    """What waits to be sent, taken all at once; what the SDK's queue is to those who write.

    The beginning of an answer and its stages are given `PATIENCE`: with a fast tool, a stage is one write and not two.
    Whenever nothing was taken for `heartbeat` seconds, a heartbeat is added; `close` ends that.
    """

    def __init__(self, heartbeat: float | None) -> None:
        self._items: list[Queued] = []
        self._loop = asyncio.get_running_loop()
        self._due, self._taken = self._loop.create_future(), asyncio.Event()  # what waits may leave; it was taken
        self._timer: asyncio.TimerHandle | None = None
        self._heartbeat, self._last = heartbeat, self._loop.time()
        self._pulse: asyncio.TimerHandle | None = None
        if heartbeat:
            self._beat()

    def put_nowait(self, item: Queued) -> None:
        self._items.append(item)
        if type(item) not in _PATIENT:
            self._send()
        elif self._timer is None and not self._due.done():
            self._timer = self._loop.call_later(PATIENCE, self._send)

    async def gathered(self) -> list[Queued]:
        """All that waits, at least one."""
        await self._due
        self._due = self._loop.create_future()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        items, self._items = self._items, []
        self._taken.set()
        self._last = self._loop.time()
        return items

    async def join(self) -> None:
        """Wait until everything has been taken."""
        while self._items:
            self._send()
            self._taken.clear()
            await self._taken.wait()

    def close(self) -> None:
        if self._pulse is not None:
            self._pulse.cancel()

    def _send(self) -> None:
        if not self._due.done():
            self._due.set_result(None)

    def _beat(self) -> None:
        # One timer for the whole answer: a new one for each piece of text would cost more than the text.
        assert self._heartbeat
        left = self._last + self._heartbeat - self._loop.time()
        if left <= 0 and not self._items:  # what waits is sent in a moment, and nothing may follow an end
            self.put_nowait(_HEARTBEAT)
        self._pulse = self._loop.call_later(left if left > 0 else self._heartbeat, self._beat)


class FastChoice(Choice):
    """A choice whose chunks are not rendered for a debug log."""

    def send_chunk(self, chunk: BaseChunk) -> None:
        self._queue.put_nowait(chunk)


class FastResponse(ChatResponse):
    """The SDK's response, read in batches of finished events."""

    def create_choice(self) -> Choice:
        return FastChoice(self._queue, super().create_choice().index)

    async def events(self, producer: Producer, heartbeat_interval: float | None) -> AsyncGenerator[bytes]:
        """Server-sent events, as many at once as have gathered.

        Raises:
            fastapi.HTTPException: the producer failed before anything was sent.
        """
        late: list[BaseChunk] = []
        waiting = Chunks(heartbeat_interval)
        self._queue = cast("Any", waiting)
        async with _running(self._run_producer(producer)):
            with closing(waiting):
                batch = await waiting.gathered()
                if failure := self._failure(batch[0]):
                    raise failure.to_fastapi_exception()
                while True:
                    if events := self._rendered(batch, late):
                        yield events
                    if type(batch[-1]) in _ENDS:
                        return
                    batch = await waiting.gathered()

    def _rendered(self, batch: Sequence[Queued], late: list[BaseChunk]) -> bytes:
        events: list[bytes] = []
        for item in batch:
            if type(item) is ContentChunk and self.n == 1:
                events.append(self._text(item.content))
            elif type(item) is bytes:
                events.append(item)
            elif type(item) in _ENDS:
                if late:
                    events.append(_event(merge(*(chunk.to_dict() for chunk in late)) | self._default_chunk))
                failure = self._failure(item)
                events += [_event(failure.json_error()), _DONE] if failure else [_DONE]
            elif type(item) in _LATE or (type(item) is EndChoiceChunk and item.choice_index == self.n - 1):
                late.append(cast("BaseChunk", item))  # these leave with the end of the answer, as one chunk
            else:
                events.append(self._own(item))
        return b"".join(events)

    def _text(self, content: str) -> bytes:
        before, after = self._around_text
        try:
            return b"%b%b%b" % (before, orjson.dumps(content), after)
        except TypeError:  # half a character
            return self._own(ContentChunk(content, 0))

    @cached_property
    def _around_text(self) -> tuple[bytes, bytes]:
        before, _, after = self._own(ContentChunk("", 0)).partition(b'""')
        return before, after

    def _own(self, chunk: Any) -> bytes:
        return b"data: %b%b" % (_json(chunk.to_dict())[:-1], self._behind)

    @cached_property
    def _behind(self) -> bytes:
        # What all chunks end with.
        return b",%b\n\n" % _json(self._default_chunk)[1:]

    def _failure(self, item: Queued) -> HTTPException | None:
        if isinstance(item, ExceptionChunk):
            return item.exc
        if isinstance(item, EndChunk) and self._last_choice_index != self.n:
            logger.error("not all choices were generated")
            return RuntimeServerError(RUNTIME_ERROR_MESSAGE)
        return None


class ChunkStream(StreamingResponse):
    """Events whose first ones are there; the SDK's middleware cancels it when the caller leaves."""

    def __init__(self, first: bytes, rest: AsyncGenerator[bytes]) -> None:
        super().__init__(rest, media_type="text/event-stream")
        self._first, self._rest = first, rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._rest) as rest:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            events: bytes | None = self._first
            while events is not None:
                await send({"type": "http.response.body", "body": events, "more_body": not events.endswith(_DONE)})
                events = await anext(rest, None)


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, Any]) -> AsyncGenerator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})


def _event(data: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % _json(data)


def _json(data: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(data)
    except TypeError:  # half a character, a number above 64 bits, or keys that are no text
        return json.dumps(data, separators=(",", ":")).encode()
