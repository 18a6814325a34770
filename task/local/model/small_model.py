"""The profile of small models on any engine: tools are a JSON schema, decisions become calls, then prose streams."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import orjson

from task.conversation.messages import Message, Role
from task.errors import ProviderError
from task.llm.accumulator import new_call_id
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
)
from task.llm.failures import CONNECTION_FAILED, CONTEXT_LENGTH, INTERRUPTED
from task.llm.text_calls import with_text_calls
from task.local.model.decision import REPLY, Decision, addresses_in, decision_schema, decisions_of, made
from task.local.model.prompt import ANSWER, PREFIX_TOKENS, deciding, fitted, offered, rendered, tokens
from task.local.model.table_step import CHART, READER, RUNNER, earlier_tables, table_step, unread_tables
from task.local.model.tables import HEAD

DECISION_TOKENS = 1024  # a call may contain a whole program
TEMPERATURE = 0.2
CHART_BIAS = -2.0  # a difference of logits: small models like to write programs where a selection would do
LIKELIEST = 20  # tokens whose probabilities an engine reports at each place
_CHOOSES = re.compile(r'\s*\[\s*\{\s*"tool"\s*:\s*"')  # what stands before the name of the first tool
LOST = frozenset({CONNECTION_FAILED, INTERRUPTED})

Engine = Callable[[], AsyncGenerator[Waiting | ChatModel]]  # what is waited for; at the end the model that writes


@dataclass(frozen=True, slots=True)
class SmallModel:
    """A model that reads at most `context` tokens and writes through an `engine`.

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

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        usable = () if options.tool_choice == "none" else offered(tools)
        async with aclosing(_Request(self, messages, usable, options).deltas()) as deltas:
            async for delta in deltas:
                yield delta

    async def read(self, messages: Sequence[Message]) -> None:
        """Let the engine read the beginning of a conversation, so that it has it computed already.

        Raises:
            ProviderError: the model does not run.
        """
        options = ModelOptions(max_tokens=1)
        async for _ in _Request(self, messages, (), options).answer(None, options):
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
        names = [str(tool["function"]["name"]) for tool in tools]
        is_free = options.tool_choice in (None, "auto")
        self._unread = unread_tables(messages, names) if is_free else []
        self._earlier = earlier_tables(messages, names) if is_free else []
        self._table = table_step(messages, names) if is_free else None
        self._reply_bias = 0.0 if self._table else model.reply_bias

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

    async def _decide(self, decision: Decision) -> AsyncGenerator[Waiting | ModelWarning]:
        # Fill `decision`; yields only what is waited for, and warnings
        decision.calls += map(_reading, self._unread)
        if decision.calls or (self._table and self._table.computed):
            return
        addresses = addresses_in(self._messages)
        schema = (
            self._table.schema()
            if self._table
            else decision_schema(self._tools, addresses.unread(self._messages), self._options.tool_choice)
        )
        if schema is None:
            return
        options = ModelOptions(
            temperature=0,
            max_tokens=self._decision_tokens,
            reasoning_effort="none",
            extra={
                "response_format": {"type": "json_schema", "json_schema": {"name": "next", "schema": schema}},
                "logit_bias": [[CHART, CHART_BIAS] if self._table else [REPLY, self._reply_bias]],
                "top_logprobs": LIKELIEST,
            },
        )
        text = ""
        try:
            ask = self._table.ask if self._table else deciding(self._messages, addresses.files, bool(self._earlier))
            async with aclosing(self.answer(ask, options, HEAD if self._table else "")) as deltas:
                async for delta in deltas:
                    if isinstance(delta, TextDelta):
                        if (
                            isinstance(delta, WeighedText)
                            and _CHOOSES.fullmatch(text)
                            and delta.text != REPLY
                            and delta.nearly(REPLY, self._reply_bias)
                        ):
                            # An estimate: the engine counts only answers that it may finish.
                            read = sum(map(tokens, fitted(self._messages, self._room)))
                            self._usage += Usage(PREFIX_TOKENS + read, 1)
                            return
                        text += delta.text
                    elif isinstance(delta, Waiting | ModelWarning):
                        yield delta
                    elif isinstance(delta, Usage):
                        self._usage += delta
        except ProviderError as error:
            if not text or error.code != INTERRUPTED:
                raise
            # Ollama ends an answer that repeats one token 30 times without a word; it is incomplete JSON then.
        if self._table:
            decision.calls += [call for call in self._table.calls(text) if call not in made(self._messages)]
        else:
            decisions_of(text, self._tools, self._messages, decision)
            if any(name == RUNNER or arguments.get("file_url") in self._earlier for name, arguments in decision.calls):
                decision.calls[:] = map(_reading, self._earlier) if self._earlier else decision.calls

    async def _prose(self) -> AsyncGenerator[Delta]:
        options = replace(
            self._options,
            temperature=TEMPERATURE if self._options.temperature is None else self._options.temperature,
            max_tokens=self._answer_tokens,
            tool_choice=None,
            reasoning_effort=self._options.reasoning_effort or "none",  # thoughts would take the answer's tokens
        )
        tail = self._table.ask if self._table and self._table.computed else ANSWER if self._tools else None
        answer = self.answer(tail, options)
        # Having decided to reply, it may write a call all the same.
        answer = with_text_calls(answer, self._messages, self._tools, self._options, self._model.name)
        async with aclosing(answer) as deltas:
            async for delta in deltas:
                yield delta + self._usage if isinstance(delta, Usage) else delta

    async def answer(self, tail: str | None, options: ModelOptions, head: str = "") -> AsyncGenerator[Delta]:
        """The model's answer to the conversation and `tail`, under `head` where there is one.

        Until the first word it is retried: when the engine was lost, and once with a shorter conversation when the
        model finds it too long.
        """
        described = self._table is not None and (head or self._table.computed)
        messages = self._table.messages if self._table and described else self._messages
        room, started, pauses = self._room, False, iter(self._model.pauses)
        while True:
            plain = rendered(fitted(messages, room), self._tools, tail, self._model.tail_role, head)
            try:
                async with aclosing(self._attempt(plain, options)) as deltas:
                    async for delta in deltas:
                        started = started or not isinstance(delta, Waiting | ModelWarning)
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
                if isinstance(stage, Waiting):
                    yield stage
                    continue
                async with aclosing(stage.stream(plain, (), options)) as deltas:
                    async for delta in deltas:
                        yield delta


def _reading(url: str) -> tuple[str, dict[str, object]]:
    return READER, {"file_url": url, "page": 1}
