"""The one loop: ask the model, run the tools it asks for, repeat."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from time import monotonic, perf_counter
from typing import Literal

from task.conversation.inner import outer_id
from task.conversation.messages import Message, Role, ToolCall, frozen_data, interrupted, repaired, unanswered, user
from task.errors import AgentError, ProviderError
from task.llm.base import (
    Accumulator,
    ChatModel,
    DialDelta,
    FileDelta,
    Finish,
    ModelOptions,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolSchema,
    Usage,
    Waiting,
)
from task.llm.window import ContextWindow
from task.output.sinks import ChoiceSink, ProgressStages
from task.permissions.decisions import Decision
from task.permissions.gate import Grant
from task.prompts import CONCLUDE, UNFINISHED
from task.telemetry.operations import first_text, model_request
from task.tools.models import TOOLS, Caller
from task.tools.toolbox import Pending, RepeatGuard, Toolbox

LAST_ANSWER_SECONDS = 60.0
_UNSHOWN = (ToolCallDelta, Finish, Usage)
PIECE = 8_000  # characters of a text that are filtered before others have a turn of the event loop
CONTENT_FILTER, EMPTY_ANSWER = "content_filter", "empty_answer"  # codes of failures that the model itself ended with


@dataclass(slots=True)
class Spent:
    """What a run of several turns has used of its limits."""

    steps: int = 0
    tokens: int = 0
    repeats: RepeatGuard = field(default_factory=RepeatGuard)


@dataclass(frozen=True, slots=True)
class Limits:
    """How far one run may go: model requests with tools, seconds of any tool and of the run, tokens of the run.

    `spent` is what earlier turns of the same run have used; a turn of its own starts from nothing.
    """

    steps: int = 15
    tool_seconds: float | None = None
    run_seconds: float = 1500
    run_tokens: int | None = None
    spent: Spent | None = None


Status = Literal["finished", "limited", "suspended", "cancelled", "failed"]


@frozen_data
class RunOutcome:
    """How a run ended, with the messages it added to the conversation and the tokens of all its model requests,
    those of its tools included; `tool_usage` has these apart, by the model that took them.

    `limit` names the limit that was hit, `pending` the calls that wait for approval, `error` what failed; `cut`: the
    answer ended at the model's limit of tokens. `grants` hold for the rest of the conversation. `discarded` are the
    places of messages that the model did not get, because the conversation was too long for it.
    """

    status: Status
    added: tuple[Message, ...]
    usage: Usage
    pending: tuple[Pending, ...] = ()
    limit: str | None = None
    error: BaseException | None = None
    tool_usage: Mapping[str, Usage] = field(default_factory=dict[str, Usage])
    cut: bool = False
    grants: tuple[Grant, ...] = ()
    discarded: tuple[int, ...] = ()

    @property
    def answer(self) -> Message:
        """The last thing the assistant said; empty when it said nothing."""
        said = (item for item in reversed(self.added) if item.role is Role.ASSISTANT and not item.tool_calls)
        return next(said, Message(Role.ASSISTANT, ""))


class LoopObserver:
    """Follows what a run does; it never changes it. All that is not overridden is passed on to `then`, if there is one.

    `before_request` is awaited before each request to the model, when all calls of the step before it have ended;
    `last`: no tools are offered in it any more. `decided` and `call_ended` are called for calls of sub-agents too, by
    their ids outside, and `call_ended` with each interim message. `trace_id` is that of the run's trace, if any.
    """

    trace_id: str = ""
    then: LoopObserver | None = None

    def __init__(self, then: LoopObserver | None = None) -> None:
        if then is not None:
            self.then, self.trace_id = then, then.trace_id

    async def before_request(self, *, last: bool) -> None:
        if self.then:
            await self.then.before_request(last=last)

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        if self.then:
            self.then.model_answered(message, usage, seconds)

    def decided(self, call: ToolCall, decision: Decision) -> None:
        if self.then:
            self.then.decided(call, decision)

    def call_ended(self, call: ToolCall, message: Message, seconds: float) -> None:
        if self.then:
            self.then.call_ended(call, message, seconds)

    def recalled(self, facts: Sequence[str]) -> None:
        if self.then:
            self.then.recalled(facts)

    def warned(self, text: str) -> None:
        if self.then:
            self.then.warned(text)

    def limit_hit(self, limit: str) -> None:
        if self.then:
            self.then.limit_hit(limit)

    def run_ended(self, outcome: RunOutcome) -> None:
        if self.then:
            self.then.run_ended(outcome)


@frozen_data
class ToolLoop:
    """One model, one toolbox, one set of limits."""

    model: ChatModel
    toolbox: Toolbox
    limits: Limits = field(default_factory=Limits)
    observer: LoopObserver = field(default_factory=LoopObserver)
    options: ModelOptions = field(default_factory=ModelOptions)
    clock: Callable[[], float] = monotonic
    window: ContextWindow = field(default_factory=ContextWindow)

    async def run(self, messages: list[Message], choice: ChoiceSink, caller: Caller) -> RunOutcome:
        """Answer the conversation; `messages` grows in place by everything the run adds.

        Calls at the end of `messages` that have no result yet (a resumed run) are made first. A failure of the model is
        an outcome, not an exception; a cancellation reaches the observer, leaves `messages` valid but for calls of a
        resumed run whose results are lost, and travels on.
        """
        run = _Run(self, messages, choice, caller)
        try:
            outcome = await run.outcome()
        except asyncio.CancelledError:
            self.observer.run_ended(run.ended("cancelled"))
            raise
        self.observer.run_ended(outcome)
        return outcome


class _Run:
    def __init__(self, loop: ToolLoop, messages: list[Message], choice: ChoiceSink, caller: Caller) -> None:
        self._loop, self._messages, self._choice = loop, messages, choice
        self._caller = replace(caller, spend=self._add_tool_usage, used=lambda: sum(self._usage.counts[:2]))
        self._options, self._usage, self._tool_usage = loop.options, Usage(), dict[str, Usage]()
        # A resumed run starts with these. One may have run although its result is lost: only the caller can say so.
        self._open = unanswered(messages)
        asked = [place for place, message in enumerate(messages) if message.tool_calls] if self._open else []
        self._base = self._past_end = asked[-1] if asked else len(messages)
        self._past = repaired(messages[: self._base])  # the run only adds: what a request had is not repaired again
        self._added = list[Message]()
        self._deadline = loop.clock() + loop.limits.run_seconds
        self._cut = self._spoke = False  # whether text of an earlier step stands in the answer

    def ended(self, status: Status, pending: Sequence[Pending] = (), limit: str | None = None) -> RunOutcome:
        ids = {outer_id(item.call.id) for item in pending}
        left = ids | {call.id for call in self._open}
        self._messages[self._base :] = repaired(self._messages[self._base :], left)
        added, by_tools = interrupted(self._added, ids), dict(self._tool_usage)
        left_out = tuple(sorted(self._loop.window.discarded))
        return RunOutcome(status, added, self._usage, tuple(pending), limit, None, by_tools, self._cut, (), left_out)

    async def outcome(self) -> RunOutcome:
        loop, limits, spent = self._loop, self._loop.limits, self._loop.limits.spent or Spent()
        steps = spent.steps
        try:
            waiting = await self._run_calls(self._open) if self._open else []
            while not waiting:
                left = self._deadline - loop.clock()
                if steps >= limits.steps:
                    return await self._conclude(f"the limit of {limits.steps} steps")
                if limits.run_tokens is not None and spent.tokens + self._caller.used() >= limits.run_tokens:
                    return await self._conclude(f"the limit of {limits.run_tokens} tokens")
                try:
                    if left <= 0:
                        raise TimeoutError  # a model that answers at once would not notice that the time is over
                    async with asyncio.timeout(left):
                        reply = await self._request(loop.toolbox.schemas())
                except TimeoutError:
                    return await self._conclude(f"the limit of {limits.run_seconds:g} seconds")
                if not reply.tool_calls:
                    return self.ended("finished")
                waiting = await self._run_calls(reply.tool_calls)
                steps += 1
        except AgentError as error:
            return replace(self.ended("failed"), error=error)
        return self.ended("suspended", pending=waiting)

    def _add_tool_usage(self, usage: Usage, model: str = TOOLS, /) -> None:
        self._usage += usage
        self._tool_usage[model] = self._tool_usage.get(model, Usage()) + usage

    def _add(self, *messages: Message) -> None:
        self._messages += messages
        self._added += messages

    async def _run_calls(self, calls: Sequence[ToolCall]) -> list[Pending]:
        toolbox, done = self._loop.toolbox, dict[str, Message]()
        left, decided = max(self._deadline - self._loop.clock(), 0.0), self._loop.observer.decided

        def ended(call: ToolCall, message: Message, seconds: float) -> None:
            done[call.id] = message
            self._loop.observer.call_ended(call, message, seconds)

        try:
            results = await toolbox.call_all(
                calls, self._choice, self._caller, messages=self._messages, seconds=left, ended=ended, decided=decided
            )
        finally:
            self._add(*(done[call.id] for call in calls if call.id in done))
            self._open = tuple(call for call in self._open if call.id not in done)
        # Only now: the tools have read the whole arguments, and later requests need not repeat them.
        shorten = toolbox.offloader.shortened_call
        kept = [await shorten(call, self._caller) if call.id in done else call for call in calls]
        if kept != list(calls) and len(self._added) > len(done):  # a resumed run did not add the calls
            place = -1 - len(done)
            self._messages[place] = self._added[place] = replace(self._added[place], tool_calls=tuple(kept))
        waiting = [result for result in results if isinstance(result, Pending)]
        self._add(*(item.paused for item in waiting if item.paused))
        return [inner for item in waiting for inner in (item.paused.waiting if item.paused else [item])]

    async def _request(self, tools: Sequence[ToolSchema], note: Sequence[Message] = ()) -> Message:
        """Ask the model once, and once more with less where its window was too small; the answer is added."""
        loop, received, waiting = self._loop, Accumulator(), ProgressStages(self._choice)
        await loop.observer.before_request(last=not tools)
        started = perf_counter()
        with model_request(loop.model.name) as measured:
            self._past += repaired(self._messages[self._past_end :])
            self._past_end = len(self._messages)
            request = await loop.window.fitted(loop.toolbox.names.as_offered([*self._past, *note]), tools)
            try:
                try:
                    await self._forward(request, tools, received, waiting)
                except ProviderError as error:
                    shorter = loop.window.shorter(request, tools, error) if received.empty else None
                    if shorter is None:
                        raise
                    await self._forward(shorter, tools, received, waiting)
                message = self._checked(received)
            except BaseException:
                if received.text:  # what the user has read stays in the conversation
                    self._add(Message(Role.ASSISTANT, received.text))
                    self._spoke = True
                raise
            finally:
                waiting.end(failed=received.empty)
                used = received.usage or Usage()
                self._usage += used
                measured.used(used.prompt_tokens, used.completion_tokens, used.cached_tokens)
                for text in received.warnings:
                    loop.observer.warned(text)
        self._add(message)
        loop.observer.model_answered(message, used, perf_counter() - started - waiting.seconds)
        return message

    async def _forward(
        self, request: list[Message], tools: Sequence[ToolSchema], received: Accumulator, waiting: ProgressStages
    ) -> None:
        options, first = self._options, True
        if options.tool_choice is not None:  # in the first request only: repeated, it would force calls for ever
            without = replace(options, tool_choice=None)
            options, self._options = (options, without) if tools else (without, options)
        # Closed here: an answer that cannot be written must not leave the model's connection open.
        async with aclosing(self._loop.model.stream(request, tools, options)) as deltas:
            async for delta in deltas:
                received.add(delta)
                if isinstance(delta, _UNSHOWN):
                    waiting.end()
                elif isinstance(delta, TextDelta):
                    if not first and len(delta.text) <= PIECE:
                        self._choice.append_content(delta.text)
                        continue
                    waiting.end()
                    text = f"\n\n{delta.text}" if first and self._spoke else delta.text
                    for start in range(0, len(text), PIECE):
                        self._choice.append_content(text[start : start + PIECE])
                        if first:
                            first = False
                            first_text()
                        await asyncio.sleep(0)  # lets the first token leave before the rest of a large read
                elif isinstance(delta, Waiting):
                    waiting.show(delta.text)
                elif not isinstance(delta, DialDelta):
                    waiting.end()
                    if isinstance(delta, ReasoningDelta):
                        for start in range(0, len(delta.text), PIECE):
                            self._choice.append_reasoning_content(delta.text[start : start + PIECE])
                            await asyncio.sleep(0)
                    elif isinstance(delta, FileDelta):
                        self._choice.add_attachment(**delta.attachment.as_dict())

    def _checked(self, received: Accumulator) -> Message:
        if received.finish_reason == "content_filter":
            text = "The model's content filter stopped the answer. Say it in other words."
            raise ProviderError(text, code=CONTENT_FILTER, display_message=text)
        message = received.message()
        if message.tool_calls:
            self._spoke = self._spoke or bool(message.content)
            # Doors offer tools by names of their own.
            calls = tuple(map(self._loop.toolbox.names.resolved, message.tool_calls))
            return message if calls == message.tool_calls else replace(message, tool_calls=calls)
        if received.finish_reason == "length":
            self._cut = True
        elif not message.content and not self._added:
            raise ProviderError("The model gave an empty answer.", code=EMPTY_ANSWER)
        return message

    async def _conclude(self, limit: str) -> RunOutcome:
        self._loop.observer.limit_hit(limit)
        try:
            async with asyncio.timeout(LAST_ANSWER_SECONDS):
                reply = await self._request((), [user(CONCLUDE.format(limit=limit))])
        except (TimeoutError, ProviderError):
            reply = Message(Role.ASSISTANT)
        if reply.tool_calls:  # some models call even without tools
            self._messages[-1] = self._added[-1] = replace(reply, tool_calls=())
        if not reply.content:
            text = UNFINISHED.format(limit=limit)
            self._choice.append_content(f"\n\n{text}" if self._spoke else text)
            first_text()
            self._add(Message(Role.ASSISTANT, text))
        return self.ended("limited", limit=limit)
