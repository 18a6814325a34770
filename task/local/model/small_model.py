"""The profile of small models on any engine: tools are a JSON schema, decisions become calls, then prose streams."""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from task.conversation.inputs import without_time
from task.conversation.messages import Message, Role, assistant
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
from task.llm.text_calls import with_text_calls
from task.local.model.decision import (
    CALCULATOR,
    CHART,
    REPLIED,
    REPLY,
    addresses_in,
    attached_tables,
    calls_in,
    calls_made,
    computed,
    decision_schema,
    ruled,
    table_step,
    unread,
)
from task.local.model.prompt import (
    ANSWER,
    ASK,
    CONTINUE,
    READER,
    RUNNER,
    TABLES,
    answering,
    deciding,
    fitted,
    offered,
    rendered,
    tokens,
)

DECISION_TOKENS = 1024  # a call may contain a whole program
TEMPERATURE = 0.2
CHART_BIAS = -2.0  # a difference of logits: small models like to write programs where a selection would do
LIKELIEST = 20  # tokens whose probabilities an engine reports at each place
LOST = frozenset({CONNECTION_FAILED, INTERRUPTED})
_CHOOSES = re.compile(r'\s*\[\s*\{\s*"tool"\s*:\s*"')  # what stands before the name of the first tool
_REPLY = r'\{ ?"tool" ?: ?"reply" ?\}'
_REPLIED = re.compile(rf"(?:JSON:\s{{0,2}})?(?:\[ ?{_REPLY} ?\]|(?<!\[)(?<!\[ ){_REPLY})\s{{0,2}}")
_LONGEST = 40  # characters of that
_MARK = re.compile(r"[\[{J]")


@dataclass(slots=True, eq=False)
class SmallModel:
    """A model that reads at most `context` tokens and writes through an `engine`, for one request at a time, first come
    first served; up to `queue` more wait.

    `reply_bias` is added to the logit of a reply when the model decides: by the engine, or here where the engine only
    reports how likely a reply was. `tail_role` is the role of what asks for the next step at the end. `pauses` are the
    seconds before each retry of a request whose engine was lost.
    """

    engine: ChatModel
    name: str
    context: int = 8192
    answer_tokens: int = 1024
    reply_bias: float = 0.0
    pauses: tuple[float, ...] = ()
    tail_role: Role = Role.SYSTEM
    queue: int = 8
    _requests: int = field(init=False, default=0)
    _serving: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)  # wakes in the order of arrival

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        if self._requests > self.queue:
            text = f"The local model is busy: {self.queue} requests are waiting already. Try again in a minute."
            raise ProviderError(text, status_code=503, code="busy", display_message=text)
        self._requests += 1
        try:
            if self._requests > 1:
                yield Waiting(f"Waiting for the local model: {self._requests - 1} ahead of this request")
            async with self._serving:
                usable = () if options.tool_choice == "none" else offered(tools)
                # Small models read few tokens, and slowly: without the date and the time.
                plain = [replace(item, content=without_time(item.text())) for item in messages]
                async with aclosing(_Request(self, plain, usable, options).deltas()) as deltas:
                    async for delta in deltas:
                        yield delta
        finally:
            self._requests -= 1


class _Request:
    """One request of the agent: a decision where there are tools, then the answer in prose."""

    def __init__(
        self, model: SmallModel, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> None:
        self._model, self._messages, self._tools, self._options = model, messages, tools, options
        self._answer_tokens = min(options.max_tokens or model.answer_tokens, model.context // 2)
        self._decision_tokens = min(DECISION_TOKENS, model.context // 4)
        self._room = model.context - max(self._answer_tokens, self._decision_tokens)
        self._decision, self._asked, self._usage = "", "", Usage()
        names = {str(tool["function"]["name"]) for tool in tools} if options.tool_choice in (None, "auto") else set()
        computes, self._calculates = {READER, RUNNER} <= names, CALCULATOR in names
        self._table = table_step(messages) if computes else None
        self._attached, self._earlier = attached_tables(messages) if computes else ([], [])

    async def deltas(self) -> AsyncGenerator[Delta]:
        calls = _reading(self._attached)
        rule = ruled(self._messages) if self._calculates and not (calls or self._table) else []
        if rule:
            calls = [call for call in rule if call not in calls_made(self._messages)]
        elif self._tools and not calls and not (self._table and self._table.computed):
            async with aclosing(self._decide()) as deltas:
                async for delta in deltas:
                    yield delta
            if self._table:
                made = calls_made(self._messages)
                calls = [call for call in self._table.calls(self._decision) if call not in made]
            else:
                calls = calls_in(self._decision, self._tools, self._messages)
            if any(name == RUNNER or given.get("file_url") in self._earlier for name, given in calls):
                calls = _reading(self._earlier) or calls
        # Prose where JSON was asked for is the answer.
        prose = "" if self._table or self._decision.lstrip()[:1] in ("[", "{") else self._decision.strip()
        prose = _REPLIED.sub("", prose)
        if not calls and "response_format" not in self._options.extra:
            prose = prose or computed(self._messages)
        if not calls and not prose:
            async with aclosing(self._prose()) as deltas:
                async for delta in deltas:
                    yield delta + self._usage if isinstance(delta, Usage) else delta
            return
        for index, (name, arguments) in enumerate(calls):
            yield ToolCallDelta(index, new_call_id(), name, orjson.dumps(arguments).decode())
        if prose:
            yield TextDelta(prose)
        yield self._usage
        yield Finish("tool_calls" if calls else "stop")

    async def _decide(self) -> AsyncGenerator[Waiting | ModelWarning]:
        # The JSON of the next step; it ends early where a reply is nearly as likely as the chosen tool.
        if self._table:
            messages, ask, head, bias = self._table.messages, self._table.ask, TABLES, [CHART, CHART_BIAS]
            schema = self._table.schema()
        else:
            messages, head, bias = self._messages, "", [REPLY, self._model.reply_bias]
            addresses = addresses_in(messages)
            ask = deciding(messages, addresses["file_url"], bool(self._earlier))
            schema = decision_schema(self._tools, unread(addresses, messages), self._options.tool_choice)
        if schema is None:
            return
        self._asked = "" if self._table else ask
        form = {"type": "json_schema", "json_schema": {"name": "next", "schema": schema}}
        extra = {"response_format": form, "logit_bias": [bias], "top_logprobs": LIKELIEST}
        options = ModelOptions(temperature=0, max_tokens=self._decision_tokens, reasoning_effort="none", extra=extra)
        try:
            async with aclosing(self.answer(messages, ask, options, head)) as deltas:
                async for delta in deltas:
                    if (
                        isinstance(delta, WeighedText)
                        and _CHOOSES.fullmatch(self._decision)
                        and delta.text != REPLY
                        and delta.nearly(REPLY, self._model.reply_bias)
                    ):
                        return
                    if isinstance(delta, TextDelta):
                        self._decision += delta.text
                    elif isinstance(delta, Usage):
                        self._usage += delta
                    elif isinstance(delta, Waiting | ModelWarning):
                        yield delta
        except ProviderError as error:
            # Ollama ends an answer that repeats one token 30 times without a word; it is incomplete JSON then.
            if not self._decision or error.code != INTERRUPTED:
                raise

    def _prose(self) -> AsyncGenerator[Delta]:
        options = replace(
            self._options,
            temperature=TEMPERATURE if self._options.temperature is None else self._options.temperature,
            max_tokens=self._answer_tokens,
            tool_choice=None,
            reasoning_effort=self._options.reasoning_effort or "none",  # thoughts would take the answer's tokens
        )
        ask = answering(self._messages, ANSWER) if self._tools else None
        messages, head, role = self._messages, "", self._model.tail_role
        after: Sequence[Message] = ()
        # The answer continues what was asked and decided, whose beginning is in the engine's cache.
        if self._table and self._table.computed:
            messages, ask, head = self._table.asked, ASK, TABLES
            result = fitted(self._table.messages[-1:], self._room // 2)
            after = (assistant(self._table.decided), *rendered(result, (), self._table.ask, role))
        elif self._asked and role is Role.USER:  # would be asked twice, and might decide again
            ask, after = self._asked, (assistant(REPLIED), Message(role, answering(messages, CONTINUE)))
        # Having decided to reply, it may write a call all the same.
        answer = without_decision(self.answer(messages, ask, options, head, after))
        return with_text_calls(answer, self._messages, self._tools, self._options)

    async def answer(
        self,
        messages: Sequence[Message],
        tail: str | None,
        options: ModelOptions,
        head: str = "",
        after: Sequence[Message] = (),
    ) -> AsyncGenerator[Delta]:
        """The model's answer to the messages and `tail`, under `head` where there is one, with `after` behind them.

        Until the first word it is retried: when the engine was lost, and once with a shorter conversation when the
        model finds it too long.
        """
        room, started, pauses = self._room, False, iter(self._model.pauses)
        while True:
            begun = fitted(messages, room - sum(map(tokens, after)))
            plain = [*rendered(begun, self._tools, tail, self._model.tail_role, head), *after]
            try:
                async with aclosing(self._model.engine.stream(plain, (), options)) as deltas:
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


async def without_decision(deltas: AsyncGenerator[Delta]) -> AsyncGenerator[Delta]:
    """The deltas without the decision to reply, which a model may write again; what may become that is held back."""
    held = ""
    async with aclosing(deltas):
        async for delta in deltas:
            if isinstance(delta, TextDelta):
                held = _REPLIED.sub("", held + delta.text)
                mark = _MARK.search(held, max(len(held) - _LONGEST, 0))
                cut = mark.start() if mark else len(held)
                delta, held = TextDelta(held[:cut]), held[cut:]
            elif held and isinstance(delta, Usage | Finish):
                yield TextDelta(held)
                held = ""
            if delta != TextDelta(""):
                yield delta


def _reading(urls: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    return [(READER, {"file_url": url, "page": 1}) for url in urls]
