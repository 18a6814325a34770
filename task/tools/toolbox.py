"""Runs the calls of one turn: in parallel, every id answered exactly once, in call order."""

import asyncio
import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from time import monotonic, perf_counter
from typing import Any, Self

from task.conversation.inner import transcript
from task.conversation.messages import Message, ToolCall, frozen_data, tool_message
from task.conversation.sources import Sources, number_of
from task.errors import ArgumentsError, SettingsError, new_reference
from task.output.sinks import ChoiceSink, StageProcessor, StageSink, request_arguments, response
from task.permissions.decisions import Allowed, CallRequest, Decision, Deferred, Denied, Effect, Gate, OpenGate
from task.permissions.icerc import ICERC, mismatch, visible
from task.permissions.taint import ContextView
from task.telemetry.operations import count, tool_call
from task.tools.base import Alias, BaseTool, ToolNames, split_brief
from task.tools.find_tools import FIND_TOOLS, MOST_FOUND, FindTools, unknown
from task.tools.models import Caller, SignIns, ToolCallParams
from task.tools.offload import Offloader

logger = logging.getLogger(__name__)

PARALLEL_CALLS = 32
TOOL_SECONDS = 300.0  # of a tool that has no limit of its own
CANCEL_GRACE = 1.0  # seconds a cancelled tool may take to clean up before it is left behind
WARN_AT, WITHDRAW_AT = 3, 5  # equal results of equal calls
PENDING_CHARS = 100_000  # a suspended turn keeps the calls of its last step as they are
TOO_LONG_TO_ASK = "the user would have to approve it, and its arguments are too long; send less, in several calls"
_STOPPED = "Error: {} was stopped after {:g} s without a result. Try a smaller input or another way."
_sorted_json = json.JSONEncoder(sort_keys=True, default=str).encode  # `json.dumps` makes an encoder for each text


@dataclass(frozen=True, slots=True)
class Pending:
    """A call that waits for the user's decision; it has no tool message yet.

    `digest` is what the answer must be bound to, `grant_description` what "always" would cover; see `Deferred`. `title`
    names the call as its stage would, with nothing in it that deceives; `arguments` are parsed. `paused`: the call was
    allowed, and its tool waits for decisions about calls of its own.
    """

    call: ToolCall
    card: ICERC
    digest: str
    reason: str = ""
    grant_description: str = ""
    title: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    paused: "Paused | None" = None


@frozen_data
class Paused(Message):
    """What a tool returns that has to wait for the user: an interim message to continue from, and what it waits for."""

    waiting: tuple[Pending, ...] = ()


CallEnded = Callable[[ToolCall, Message, float], None]
Decided = Callable[[ToolCall, Decision], None]


@dataclass(slots=True)
class RepeatGuard:
    """Counts equal calls with equal results during one turn; a call that writes resets every other count."""

    withdrawn: set[str] = field(default_factory=set[str])
    _counts: Counter[tuple[str, str, bytes]] = field(default_factory=Counter[tuple[str, str, bytes]])

    def with_warning(self, tool: BaseTool, arguments: Mapping[str, Any], result: str) -> str:
        """The result for the model; from the third equal one on it ends with a warning."""
        key = (tool.name, _sorted_json(arguments), blake2b(result.encode()).digest())
        if Effect.WRITE in tool.effects:
            self._counts = Counter({key: self._counts[key]})
        count = self._counts[key] = self._counts[key] + 1
        if count < WARN_AT:
            return result
        warning = f"The same call gave the same result {count} times. Use it, or call differently."
        if count >= WITHDRAW_AT:
            self.withdrawn.add(tool.name)
            warning = f"{tool.name} gave this same result {count} times; it is withdrawn for the rest of this turn."
        return f"{result}\n\n[{warning}]"


@frozen_data
class _CallsOfStep:
    """What the calls of one step share; `room` is how long a call may be that waits for an approval."""

    choice: ChoiceSink
    caller: Caller
    context: ContextView
    deadline: float
    decided: Decided | None
    room: int
    messages: Sequence[Message]
    sign_ins: SignIns


@dataclass(slots=True)
class Toolbox:
    """The tools of one run, which remembers repeated calls and withdrawn tools.

    No call takes longer than `tool_seconds`, its tool's own limit, or what is left of the run. `briefed`: the schemas
    of tools that write ask the model for the purpose of a call, for the user who approves it.
    The model knows tools by the `aliases`, everything else by their own names; `names` translates.
    `sources` collects the citations of the results: the answer carries them when it is written, other attachments at
    once. `repeats` are those of the whole run, where this is not its first turn, `context` the view of its messages.
    The calls of a step that wait for an approval share `room`, in characters; at most `parallel` calls run at a time.
    """

    tools: Sequence[BaseTool]
    gate: Gate = field(default_factory=OpenGate)
    offloader: Offloader = field(default_factory=lambda: Offloader(None))
    tool_seconds: float | None = None
    briefed: bool = False
    aliases: Sequence[Alias] = ()
    sources: Sources = field(default_factory=Sources)
    repeats: RepeatGuard = field(default_factory=RepeatGuard)
    room: int = PENDING_CHARS
    context: ContextView = field(default_factory=ContextView)
    parallel: int = PARALLEL_CALLS
    _slots: asyncio.Semaphore = field(init=False)
    _by_name: dict[str, BaseTool] = field(init=False)
    names: ToolNames = field(init=False)
    _unsent: frozenset[str] = field(init=False, default=frozenset())
    _found: dict[str, BaseTool] = field(init=False, default_factory=dict[str, BaseTool])
    _read: int = field(init=False, default=0)
    _changing: tuple[list[str], set[str]] | None = field(init=False, default=None)  # what the schemas were made for
    _schemas: list[dict[str, Any]] = field(init=False, default_factory=list[dict[str, Any]])

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.parallel)
        self._by_name = named(self.tools)
        self.names = ToolNames(self._by_name, self.aliases)
        if isinstance(finder := self._by_name.get(FIND_TOOLS), FindTools):
            self._unsent = finder.names & self._by_name.keys()

    def schemas(self) -> list[dict[str, Any]]:
        """The schemas offered to the model, in a stable order, without withdrawn tools; one list until that changes.

        Those that the conversation has found or called come last, in the order in which it did: what providers keep of
        a request stays its beginning.
        """
        if self._unsent:
            for message in self.context.messages[self._read :]:
                names = [*(call.name for call in message.tool_calls), *FindTools.named(message)]
                self._found |= {name: self._by_name[name] for name in names if name in self._unsent}
            self._read = len(self.context.messages)
            for name in [*self._found][:-MOST_FOUND]:
                del self._found[name]  # it can still be called, or found again
        changing = [*self._found], set(self.repeats.withdrawn)
        if changing != self._changing:
            self._changing = changing
            sent = [tool for tool in self.tools if tool.name not in self._unsent]
            self._schemas = [
                self.names.schema(tool.briefed_schema if self.briefed else tool.schema)
                for tool in (*sent, *self._found.values())
                if tool.name not in self.repeats.withdrawn
            ]
        return self._schemas

    def view(self, messages: Sequence[Message]) -> ContextView:
        """The conversation as the gate sees it, with the origin of each tool's results; one view while it grows."""
        if self.context.messages is not messages:
            self.context = ContextView(messages, {tool.name: tool.origin for tool in self.tools})
        return self.context

    async def call_all(
        self,
        calls: Sequence[ToolCall],
        choice: ChoiceSink,
        caller: Caller,
        *,
        messages: Sequence[Message] = (),
        seconds: float | None = None,
        ended: CallEnded | None = None,
        decided: Decided | None = None,
    ) -> list[Message | Pending]:
        """One tool message or one pending call for every call, in call order.

        `messages` is the conversation the calls were made in, for the gate. `seconds` is what is left of the run and
        bounds every call. `ended` is called with each answer as it arrives, even if the step is cancelled before the
        last one; `decided` with each decision of the gate.
        """
        deadline = monotonic() + (math.inf if seconds is None else seconds)
        room = self.room // max(len(calls), 1)
        sign_ins = SignIns(min(len(calls), self.parallel))
        step = _CallsOfStep(choice, caller, self.view(messages), deadline, decided, room, messages, sign_ins)

        async def answer(made: ToolCall) -> Message | Pending:
            call = self.names.resolved(made)
            async with self._slots:
                started = perf_counter()
                result = await self._answer(call, step)
            step.sign_ins.running -= 1
            if step.sign_ins.results:
                step.sign_ins.look()
            if ended and isinstance(result, Message):
                ended(call, result, perf_counter() - started)
            return result

        if len(calls) == 1:
            results = [await answer(calls[0])]  # a task of its own would only cost
        else:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(answer(call)) for call in calls]
            results = [task.result() for task in tasks]
        for result in results:
            for item in result.attachments if isinstance(result, Message) else ():
                if number_of(item) is None:  # citations come with the answer that makes them
                    choice.add_attachment(**item.as_dict())
        return results

    async def _answer(self, call: ToolCall, step: _CallsOfStep) -> Message | Pending:
        tool, choice = self._by_name.get(call.name), step.choice
        if tool is None:
            text = unknown(call.name, [*map(self.names.offered, self._by_name)])
            return _failed(call, choice, text, "an unknown tool")  # the log never repeats what a model made up
        if call.name in self.repeats.withdrawn:
            return _failed(call, choice, f"{call.name} is withdrawn for this turn. Answer with what you have.")
        made, brief = split_brief(call, tool.parameters)
        try:
            arguments = tool.parse(made)
        except ArgumentsError as error:
            message = _failed(call, choice, str(error))
            return self._with_repeat_warning(tool, {"raw": call.function.arguments}, message)
        effects, workspace = await tool.effects_now(arguments), tool.workspace_access(arguments)
        names = frozenset(tool.parameters.get("properties", ()))
        request = CallRequest(call, arguments, effects, step.context, brief, workspace, names, tool.offered_by)
        decision = await self.gate.decide(request)
        if isinstance(decision, Deferred) and decision.digest and len(json.dumps(call.function.arguments)) > step.room:
            decision = Denied(TOO_LONG_TO_ASK)
        if isinstance(decision, Deferred) and transcript(step.messages, call.id):
            decision = Allowed("the user")  # who let its sub-agent start
        count("decision", type(decision).__name__.lower())
        if step.decided is not None:
            step.decided(call, decision)
        if isinstance(decision, Deferred):
            title, described = visible(tool.title(arguments)), decision.grant_description
            return Pending(call, decision.card, decision.digest, decision.reason, described, title, arguments)
        if isinstance(decision, Denied):
            return _failed(call, choice, f"This call was not allowed: {decision.reason}.", error=False)
        return await self._run(tool, call, arguments, step, decision.card)

    async def _run(
        self, tool: BaseTool, call: ToolCall, arguments: dict[str, Any], step: _CallsOfStep, card: ICERC | None
    ) -> Message | Pending:
        caller = step.caller
        own = tool.spec.timeout or self.tool_seconds or TOOL_SECONDS
        limit = max(min(own, self.tool_seconds or own, step.deadline - monotonic()), 0.0)
        with _CallStage(step.choice, tool.name, tool.title(arguments)) as stage:
            if tool.show_in_stage:
                stage.sink.append_content(request_arguments(arguments))
            whose = caller.api_key, caller.conversation_id, dict(arguments), caller
            run = self.sources, limit, stage.reference, step.messages, step.sign_ins
            params = ToolCallParams(call, stage.sink, step.choice, *whose, *run)
            with tool_call(tool.name, call.id) as measured:
                done = await _within(tool.execute(params), limit)
                message = done or tool_message(call, _STOPPED.format(call.name, round(limit, 2)), failed=True)
                if message.failed:
                    measured.failed("tool_error" if done else "timeout")
            if isinstance(message, Paused):
                stage.failed, first = False, message.waiting[0]
                if step.decided is not None:
                    step.decided(call, Deferred(first.card, "", first.reason))
                return Pending(call, first.card, "", paused=message)
            message = self.sources.adopted(message)
            if tool.show_in_stage or message.failed:
                stage.respond(tool.shown(message.text()), error=message.failed)
            stage.failed = message.failed
            note = mismatch(card, message.text(), failed=message.failed) if card else ""
            if note:
                stage.sink.append_content(f"\n**Not as approved:** {note}\n")
            for attachment in message.attachments:
                stage.sink.add_attachment(**attachment.as_dict())
        if tool.spec.offloads:
            message = _with_text(message, await self.offloader.shortened(tool.name, message.text(), caller))
        if note:
            message = _with_text(message, f"{message.text()}\n\n[Not as the user approved it. {note}]")
        return self._with_repeat_warning(tool, arguments, message)

    def _with_repeat_warning(self, tool: BaseTool, arguments: dict[str, Any], message: Message) -> Message:
        return _with_text(message, self.repeats.with_warning(tool, arguments, message.text()))


def _with_text(message: Message, text: str) -> Message:
    return message if text == message.content else replace(message, content=text)


def named(tools: Sequence[BaseTool]) -> dict[str, BaseTool]:
    """The tools by name.

    Raises:
        SettingsError: two tools have one name.
    """
    by_name = {tool.name: tool for tool in tools}
    if len(by_name) < len(tools):
        name = next(name for name, times in Counter(tool.name for tool in tools).items() if times > 1)
        raise SettingsError(f"two tools are called {name!r}; rename or remove one of them")
    return by_name


class _CallStage:
    """A call's stage: timed, and closed FAILED unless the call is known to have succeeded."""

    def __init__(self, choice: ChoiceSink, tool: str, title: str) -> None:
        self.sink: StageSink = choice.create_stage(title)
        self.failed = True
        self.reference = new_reference()
        self._tool = tool

    def __enter__(self) -> Self:
        self._started = perf_counter()
        self.sink.open()
        return self

    def respond(self, text: str, *, error: bool) -> None:
        """Show the result of the call; an error with its reference, under which it stands in the log."""
        self.sink.append_content(response(text))
        if error and self.reference not in text:  # a crash has been logged with it already
            logger.info("a call of %s failed (reference %s)", self._tool, self.reference)
            self.sink.append_content(f"\n(error reference: {self.reference})\n")

    def __exit__(self, *_: object) -> None:
        self.sink.append_name(f" [{perf_counter() - self._started:.2f}s]")
        StageProcessor.close_stage_safely(self.sink, failed=self.failed)


def _failed(call: ToolCall, choice: ChoiceSink, text: str, tool: str | None = None, *, error: bool = True) -> Message:
    with _CallStage(choice, tool or call.name, call.name) as stage:
        stage.respond(text, error=error)
    return tool_message(call, f"Error: {text}", failed=True)


async def _within(work: Coroutine[Any, Any, Message], seconds: float) -> Message | None:
    """The result, or None if the work was too slow or cancelled itself; it never outlives the call by much."""
    loop = asyncio.get_running_loop()
    task, over = loop.create_task(work), loop.create_future()

    def end(done: asyncio.Task[Message] | None = None) -> None:
        if done is not None and not done.cancelled():
            done.exception()  # of a task that is left behind it is looked at, or asyncio would report it
        if not over.done():
            over.set_result(None)

    task.add_done_callback(end)
    timer = loop.call_later(seconds, end)  # `asyncio.wait` costs a call as much as its gate
    try:
        await over
    finally:
        timer.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task}, timeout=CANCEL_GRACE)
    return task.result() if task.done() and not task.cancelled() else None
