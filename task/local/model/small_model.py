"""The profile of small models on any engine: tools are a JSON schema, decisions become calls, then prose streams.

A model of an Ollama server gets it where it is small.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from task.conversation.messages import Message, Role
from task.errors import ProviderError
from task.llm.base import (
    ChatModel,
    Delta,
    Finish,
    ModelOptions,
    ModelWarning,
    TextDelta,
    ToolCallDelta,
    ToolSchema,
    Usage,
    Waiting,
    WeighedText,
    new_call_id,
)
from task.llm.failures import CONNECTION_FAILED, CONTEXT_LENGTH, INTERRUPTED
from task.llm.ollama import OllamaServer
from task.llm.ollama_request import OllamaModel
from task.llm.text_calls import with_text_calls
from task.local.model.decision import (
    REPLY,
    Decision,
    addresses_in,
    attached_tables,
    calls_made,
    decision_of,
    decision_schema,
    unread,
)
from task.local.model.prompt import ANSWER, PREFIX_TOKENS, READER, RUNNER, deciding, fitted, offered, rendered, tokens
from task.local.model.tables import CHART, HEAD, table_step
from task.local.model.weights import CODER

DECISION_TOKENS = 1024  # a call may contain a whole program
TEMPERATURE = 0.2
CHART_BIAS = -2.0  # a difference of logits: small models like to write programs where a selection would do
LIKELIEST = 20  # tokens whose probabilities an engine reports at each place
LOST = frozenset({CONNECTION_FAILED, INTERRUPTED})
BUSY = "The local model is busy: {waiting} requests are waiting already. Try again in a minute."
_CHOOSES = re.compile(r'\s*\[\s*\{\s*"tool"\s*:\s*"')  # what stands before the name of the first tool

Engine = Callable[[], AsyncGenerator[Waiting | ChatModel]]  # what is waited for; at the end the model that writes
SMALL_PARAMETERS = 4_000_000_000  # fewer make a small model: it does not follow long prompts and full tool schemas
SMALL_CONTEXT = 8192  # what it reads at most: more would take a machine without a GPU minutes
NO_TOOLS = "the tools had no effect: {model} cannot call tools"


class Line:
    """First come, first served; up to `waiting` requests wait behind the one that is served."""

    def __init__(self, waiting: int = 8) -> None:
        self._waiting = waiting
        self._requests = 0
        self._serving = asyncio.Lock()  # wakes in the order of arrival

    async def turn(self) -> AsyncGenerator[Waiting | None]:
        """How many are ahead, then None as soon as it is this request's turn, which lasts until the generator closes.

        Raises:
            ProviderError: the line is full.
        """
        if self._requests > self._waiting:
            text = BUSY.format(waiting=self._waiting)
            raise ProviderError(text, status_code=503, code="busy", display_message=text)
        self._requests += 1
        try:
            if self._requests > 1:
                yield Waiting(f"Waiting for the local model: {self._requests - 1} ahead of this request")
            async with self._serving:
                yield None
        finally:
            self._requests -= 1


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A model that reads at most `context` tokens and writes through an `engine`, for one request of the `line` at a
    time.

    `reply_bias` is added to the logit of a reply when the model decides: by the engine, or here where the engine only
    reports how likely a reply was. `tail_role` is the role of what asks for the next step at the end. `pauses` are the
    seconds before each retry of a request whose engine was lost.
    """

    engine: Engine
    name: str
    context: int = 8192
    answer_tokens: int = 1024
    reply_bias: float = 0.0
    pauses: tuple[float, ...] = ()
    tail_role: Role = Role.SYSTEM
    line: Line = field(default_factory=Line)

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        async with aclosing(self.line.turn()) as turn:
            async for waiting in turn:
                if waiting:
                    yield waiting
                    continue
                usable = () if options.tool_choice == "none" else offered(tools)
                async with aclosing(_Request(self, messages, usable, options).deltas()) as deltas:
                    async for delta in deltas:
                        yield delta

    async def read(self, messages: Sequence[Message]) -> None:
        """Let the engine read the beginning of a conversation, so that one that continues it starts sooner.

        Raises:
            ProviderError: the model does not run.
        """
        options = ModelOptions(max_tokens=1, tool_choice="none")
        async for _ in self.stream(messages, (), options):
            pass


class _Request:
    """One request of the agent: a decision where there are tools, then the answer in prose."""

    def __init__(
        self, model: SmallModel, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> None:
        self._model, self._messages, self._tools, self._options = model, messages, tools, options
        self._answer_tokens = min(options.max_tokens or model.answer_tokens, model.context // 2)
        self._decision_tokens = min(DECISION_TOKENS, model.context // 4)
        self._room = model.context - max(self._answer_tokens, self._decision_tokens)
        self._usage = Usage()
        names = {str(tool["function"]["name"]) for tool in tools}
        computes = {READER, RUNNER} <= names and options.tool_choice in (None, "auto")
        self._table = table_step(messages) if computes else None
        self._attached = attached_tables(messages) if computes else []
        self._earlier = attached_tables(messages, earlier=True) if computes else []

    async def deltas(self) -> AsyncGenerator[Delta]:
        decision, text = Decision(_reading(self._attached)), ""
        if self._tools and not decision.calls and not (self._table and self._table.computed):
            async with aclosing(self._chosen()) as deltas:
                async for delta in deltas:
                    if isinstance(delta, TextDelta):
                        text += delta.text
                    else:
                        yield delta
            if self._table:
                decision.calls += [call for call in self._table.calls(text) if call not in calls_made(self._messages)]
            else:
                decision = decision_of(text, self._tools, self._messages)
            if any(name == RUNNER or given.get("file_url") in self._earlier for name, given in decision.calls):
                decision.calls = _reading(self._earlier) or decision.calls
        if not decision.calls and not decision.prose:
            async with aclosing(self._prose()) as deltas:
                async for delta in deltas:
                    yield delta + self._usage if isinstance(delta, Usage) else delta
            return
        for index, (name, arguments) in enumerate(decision.calls):
            yield ToolCallDelta(index, new_call_id(), name, orjson.dumps(arguments).decode())
        if decision.prose:
            yield TextDelta(decision.prose)
        yield self._usage
        yield Finish("tool_calls" if decision.calls else "stop")

    async def _chosen(self) -> AsyncGenerator[TextDelta | Waiting | ModelWarning]:
        # The JSON of the next step; it ends early where a reply is nearly as likely as the chosen tool.
        schema: dict[str, Any] | None
        if self._table:
            messages, ask, head, bias = self._table.messages, self._table.ask, HEAD, [CHART, CHART_BIAS]
            schema = self._table.schema()
        else:
            messages, head, bias = self._messages, "", [REPLY, self._model.reply_bias]
            addresses = addresses_in(messages)
            ask = deciding(messages, addresses["file_url"], bool(self._earlier))
            schema = decision_schema(self._tools, unread(addresses, messages), self._options.tool_choice)
        if schema is None:
            return
        form = {"type": "json_schema", "json_schema": {"name": "next", "schema": schema}}
        extra = {"response_format": form, "logit_bias": [bias], "top_logprobs": LIKELIEST}
        options = ModelOptions(temperature=0, max_tokens=self._decision_tokens, reasoning_effort="none", extra=extra)
        text = ""
        try:
            async with aclosing(self.answer(messages, ask, options, head)) as deltas:
                async for delta in deltas:
                    if (
                        isinstance(delta, WeighedText)
                        and _CHOOSES.fullmatch(text)
                        and delta.text != REPLY
                        and delta.nearly(REPLY, self._model.reply_bias)
                    ):
                        # An estimate: the engine counts only answers that it may finish.
                        read = sum(map(tokens, fitted(self._messages, self._room)))
                        self._usage += Usage(PREFIX_TOKENS + read, 1)
                        return
                    if isinstance(delta, Usage):
                        self._usage += delta
                    elif isinstance(delta, TextDelta | Waiting | ModelWarning):
                        text += delta.text if isinstance(delta, TextDelta) else ""
                        yield delta
        except ProviderError as error:
            # Ollama ends an answer that repeats one token 30 times without a word; it is incomplete JSON then.
            if not text or error.code != INTERRUPTED:
                raise

    def _prose(self) -> AsyncGenerator[Delta]:
        options = replace(
            self._options,
            temperature=TEMPERATURE if self._options.temperature is None else self._options.temperature,
            max_tokens=self._answer_tokens,
            tool_choice=None,
            reasoning_effort=self._options.reasoning_effort or "none",  # thoughts would take the answer's tokens
        )
        messages, ask = self._messages, ANSWER if self._tools else None
        if self._table and self._table.computed:
            messages, ask = self._table.messages, self._table.ask
        # Having decided to reply, it may write a call all the same.
        answer = self.answer(messages, ask, options)
        return with_text_calls(answer, self._messages, self._tools, self._options)

    async def answer(
        self, messages: Sequence[Message], tail: str | None, options: ModelOptions, head: str = ""
    ) -> AsyncGenerator[Delta]:
        """The model's answer to the messages and `tail`, under `head` where there is one.

        Until the first word it is retried: when the engine was lost, and once with a shorter conversation when the
        model finds it too long.
        """
        room, started, pauses = self._room, False, iter(self._model.pauses)
        while True:
            plain = rendered(fitted(messages, room), self._tools, tail, self._model.tail_role, head)
            try:
                async with aclosing(self._model.engine()) as stages:
                    async for stage in stages:
                        if isinstance(stage, Waiting):
                            yield stage
                            continue
                        async with aclosing(stage.stream(plain, (), options)) as deltas:
                            async for delta in deltas:
                                started = started or not isinstance(delta, Waiting | ModelWarning)
                                yield delta
                return
            except ProviderError as error:
                if not started and error.code == CONTEXT_LENGTH and room == self._room:
                    room = room // 2
                elif not started and error.code in LOST and (pause := next(pauses, None)):
                    await asyncio.sleep(pause)
                else:
                    raise


def _reading(urls: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    return [(READER, {"file_url": url, "page": 1}) for url in urls]


def is_small(model: OllamaModel) -> bool:
    """Whether it gets the small models' profile; Ollama's cloud does not constrain answers, as the profile requires."""
    return not model.remote and model.parameters is not None and model.parameters < SMALL_PARAMETERS


def readable_tokens(model: OllamaModel) -> int:
    """How many tokens the model reads and writes at a time."""
    return min(model.context, SMALL_CONTEXT) if is_small(model) else model.context


@dataclass(frozen=True, slots=True)
class SizedOllamaModel:
    """The model `name` of a server."""

    server: OllamaServer
    name: str

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        model, chat = await self.server.model(self.name), self.server.chat_model(self.name)
        parts = (part for message in messages if isinstance(message.content, list) for part in message.content)
        if is_small(model) and all(part.get("type") != "image_url" for part in parts):  # the profile is for text

            async def engine() -> AsyncGenerator[Waiting | ChatModel]:
                yield self.server.chat_model(self.name)

            # Ollama moves all system messages to the beginning, where they would change what it has in its cache.
            bias, role = CODER.reply_bias, Role.USER
            chat = SmallModel(engine, self.name, readable_tokens(model), reply_bias=bias, tail_role=role)
            if tools and not model.can("tools"):
                yield ModelWarning(NO_TOOLS.format(model=self.name))
                tools = ()
        async with aclosing(chat.stream(messages, tools, options)) as deltas:
            async for delta in deltas:
                yield delta
