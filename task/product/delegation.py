"""Sub-agents: a task for another loop with a context of its own, of which the answer alone comes back."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from task.conversation.inner import DELEGATE, inner_id, interim, transcript
from task.conversation.inputs import timed
from task.conversation.messages import Attachment, Message, Role, ToolCall, unanswered, user
from task.conversation.pruning import Budget, shortened
from task.conversation.sources import number_of
from task.errors import ProviderError, ToolError
from task.llm.base import ModelOptions, Usage
from task.llm.failures import explained
from task.local.model.weights import CODER
from task.loop import LAST_ANSWER_SECONDS, Limits, LoopObserver, RunOutcome, ToolLoop
from task.output.links import Suspicion
from task.output.sinks import DefangedStage, NullChoice, StageSink
from task.permissions.decisions import CallRequest, Decision, Deferred, Denied
from task.permissions.gate import PolicyGate
from task.permissions.taint import ContextView, InnerView, Origin
from task.product.profile import Profile
from task.tools.base import BaseTool, ToolNames, ToolSpec, object_schema, text
from task.tools.models import Caller, Spend, ToolCallParams
from task.tools.toolbox import TOO_LONG_TO_ASK, Paused, Toolbox, named

LEAST_TOKENS = 8_000  # of a model's window: smaller models delegate badly, and have no room for the results
KEPT_CHARS, ASKED_CHARS = 100_000, 10_000  # what paused sub-agents of a step keep together, and a call that is asked
TASK_CHARS, MAX_FILES = 20_000, 20
PROMPT = (
    "You are a sub-agent. Another agent has given you the task below and reads nothing of yours but your last message. "
    "Do the task with your tools, then answer with the result alone, complete in itself and no longer than it has to "
    "be. You cannot ask back: say plainly what you could not find or do."
)
DESCRIPTION = (
    "Give a task to a sub-agent, which works on it with the same tools and a fresh context, and get its answer. Use it "
    "for a part that needs many steps or much reading of which only the result matters. Independent parts: one call "
    "each, all in one step, so that they run at the same time. A sub-agent sees nothing of this conversation."
)
_TASK = "The whole task: what to find out or do, all names, addresses and facts needed for it, what to answer with"
_NO_STEPS = "the sub-agents of this turn have used their {} steps; do the rest yourself, or answer with what you have"
_CUT = "\n[cut: shortened while the user was asked; call the tool again if the rest is needed]\n"


async def sub_agents(
    profile: Profile,
    caller: Caller,
    tools: Sequence[BaseTool],
    gate: PolicyGate,
    view: ContextView,
    observer: LoopObserver,
) -> "DelegateTool | None":
    """The tool that delegates to sub-agents with these tools; None where the profile or its model has none."""
    if profile.agents is None or not tools or not profile.rules.policy.offers(DELEGATE) or DELEGATE in named(tools):
        return None
    limit = profile.window(caller.api_key).limit
    tokens = await limit() if limit is not None else None
    if profile.model == CODER.name or (tokens is not None and tokens < LEAST_TOKENS):
        return None
    return DelegateTool(profile, tools, gate, view, observer)


class DelegateTool(BaseTool, LoopObserver):
    """Runs a sub-agent for each call, with the gate and the limits of the agent's own turn, which it observes.

    The steps of `profile.agents` are for all sub-agents of the turn together: those that start in one step divide what
    is left of them, and of the run's tokens. `view` is the agent's conversation.
    """

    def __init__(
        self, profile: Profile, tools: Sequence[BaseTool], gate: PolicyGate, view: ContextView, observer: LoopObserver
    ) -> None:
        LoopObserver.__init__(self, observer)
        assert profile.agents is not None
        self._profile, self._tools, self._gate, self._view = profile, tools, gate, view
        self._steps, self._running = profile.agents.steps, 0
        self._tokens = profile.limits.spent.tokens if profile.limits.spent else 0
        models = {"model": {"type": "string", "enum": list(profile.agents.models)}} if profile.agents.models else {}
        names = {
            "type": "array",
            "items": {"type": "string"},
            "description": "Names of the tools it gets; default: all",
        }
        schema = object_schema("task", task=text(_TASK, minLength=1, maxLength=TASK_CHARS), tools=names, **models)
        # Of no effect by itself: the sub-agent's own calls are decided one by one.
        self.spec = ToolSpec(
            DELEGATE, DESCRIPTION, schema, frozenset(), Origin.MADE, timeout=profile.limits.run_seconds
        )

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        self._tokens += usage.prompt_tokens + usage.completion_tokens
        super().model_answered(message, usage, seconds)

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        params, call = tool_call_params, tool_call_params.tool_call
        siblings = [item.id for item in unanswered(params.earlier) if item.name == DELEGATE]
        share = max(len(siblings) - self._running, 1)  # of those that have not started yet
        steps = min(max(self._steps // share, 1), self._profile.limits.steps)
        if self._steps < steps:
            assert self._profile.agents is not None
            raise ToolError(_NO_STEPS.format(self._profile.agents.steps))
        self._steps, self._running = self._steps - steps, self._running + 1
        most = self._profile.limits.run_tokens
        tokens = None if most is None else max((most - self._tokens) // max(len(siblings), 1), 1)
        seconds = params.seconds or self._profile.limits.run_seconds
        seconds = max(seconds - LAST_ANSWER_SECONDS, seconds / 2)  # it is to answer before its call is stopped
        limits = replace(self._profile.limits, steps=steps, run_seconds=seconds, run_tokens=tokens, spent=None)
        inside = _Inside(self, call, self._gate, params.known_caller.spend, self._model(params))
        try:
            outcome, messages = await self._answered(params, limits, inside)
        finally:
            self._steps, self._running = self._steps + max(steps - inside.steps, 0), self._running - 1
            self._tokens += inside.tokens
        if outcome.status == "suspended":
            kept = _kept(outcome.added, KEPT_CHARS // max(len(siblings), 1))
            waiting = [
                replace(
                    item, call=replace(item.call, id=inner_id(call.id, item.call.id)), title=f"Sub-agent: {item.title}"
                )
                for item in outcome.pending
            ]
            message = interim(call, kept)
            return Paused(Role.TOOL, message.content, memo=message.memo, interim=True, waiting=tuple(waiting))
        return self._result(outcome, messages, params)

    def _model(self, params: ToolCallParams) -> str:
        return (params.arguments or {}).get("model") or self._profile.model

    async def _answered(
        self, params: ToolCallParams, limits: Limits, inside: "_Inside"
    ) -> tuple[RunOutcome, list[Message]]:
        """The sub-agent's outcome, and its whole conversation; it continues where an earlier turn was suspended."""
        arguments, caller = params.arguments or {}, params.known_caller
        profile, sources = replace(self._profile, model=self._model(params)), params.sources
        tools = self._chosen(arguments.get("tools"))
        # The agent's own prompt, with its date, personas and context.
        prompt = replace(self._view.messages[0], content=f"{self._view.messages[0].text()}\n\n{PROMPT}")
        task = replace(user(arguments["task"]), scrub_pii=any(item.scrub_pii for item in params.earlier))
        [task], _ = timed([task], profile.clock(), caller.headers, profile.timezone, self.warned)
        before = transcript(params.earlier, params.tool_call.id)
        messages = [prompt, task, *(sources.adopted(item) if item.role is Role.TOOL else item for item in before)]
        view = InnerView(self._view, messages, {tool.name: tool.origin for tool in tools}, 2)
        suspicion = Suspicion(view.knows, lambda: view.tainted, profile.link_hosts)
        toolbox = Toolbox(
            tools,
            InnerGate(self._gate, params.tool_call.id),
            profile.offloader,
            limits.tool_seconds,
            briefed=True,
            aliases=profile.aliases,
            sources=sources,
            context=view,
        )
        loop = ToolLoop(
            profile.backend.chat_model(profile.model, caller),
            toolbox,
            limits,
            inside,
            options=_options(profile.options),
            window=profile.window(caller.api_key),
        )
        outcome = await loop.run(messages, _StageChoice(DefangedStage(params.stage, suspicion)), caller)
        return outcome, messages

    def _chosen(self, names: Sequence[str] | None) -> list[BaseTool]:
        if names is None:
            return list(self._tools)
        known = ToolNames(named(self._tools), self._profile.aliases)
        by_name = {known.offered(tool.name): tool for tool in self._tools} | named(self._tools)
        if unknown := sorted(set(names) - by_name.keys() - {DELEGATE}):
            raise ToolError(f"there is no tool {unknown[0]!r} for a sub-agent; there are {', '.join(by_name)}")
        return list(named([by_name[name] for name in dict.fromkeys(names) if name != DELEGATE]).values())

    def _result(self, outcome: RunOutcome, messages: Sequence[Message], params: ToolCallParams) -> Message:
        results = [item for item in messages[2:] if item.role is Role.TOOL]
        if outcome.error is not None:
            error, model = outcome.error, self._model(params)
            why = explained(error, model) if isinstance(error, ProviderError) else str(error)
            called = ", ".join(item.name or "" for item in results) or "none"
            raise ToolError(f"the sub-agent failed: {why} Calls that it had made: {called}")
        said = outcome.answer.text() or "The sub-agent gave no answer."
        note = f"\n\n[The sub-agent stopped at {outcome.limit}.]" if outcome.limit else ""
        files = [item for result in results for item in result.attachments if number_of(item) is None]
        shown = [*dict.fromkeys(files)][-MAX_FILES:]
        return Message(Role.TOOL, said + note, attachments=(*shown, *params.sources.cited(said)))


@dataclass(frozen=True, slots=True)
class InnerGate:
    """The agent's gate for the calls of the sub-agent that works for the call `outer`: their ids are unique there."""

    gate: PolicyGate
    outer: str

    async def decide(self, request: CallRequest) -> Decision:
        call = replace(request.call, id=inner_id(self.outer, request.call.id))
        decision = await self.gate.decide(replace(request, call=call))
        if isinstance(decision, Deferred) and len(call.function.arguments) > ASKED_CHARS:
            return Denied(TOO_LONG_TO_ASK)
        return decision


class _Inside(LoopObserver):
    """Reports what the sub-agent does to the observer of its agent's turn, and its tokens as those of the run."""

    def __init__(self, then: LoopObserver, call: ToolCall, gate: PolicyGate, spend: Spend, model: str) -> None:
        super().__init__(then)
        self.steps = self.tokens = 0
        self._call, self._keep, self._spend, self._model = call, gate.refresh, spend, model

    async def before_request(self, *, last: bool) -> None:
        if self._keep is not None:  # what its calls have done is on disk before its model thinks about it
            await self._keep()

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        self.steps += bool(message.tool_calls)
        self.progressed(self._call, message)

    def decided(self, call: ToolCall, decision: Decision) -> None:
        super().decided(replace(call, id=inner_id(self._call.id, call.id)), decision)

    def call_ended(self, call: ToolCall, message: Message, seconds: float) -> None:
        super().call_ended(replace(call, id=inner_id(self._call.id, call.id)), message, seconds)
        self.progressed(self._call, message)

    def limit_hit(self, limit: str) -> None:
        """Not the run's."""

    def run_ended(self, outcome: RunOutcome) -> None:
        self.tokens = outcome.usage.prompt_tokens + outcome.usage.completion_tokens
        self._spend(outcome.usage - sum(outcome.tool_usage.values(), Usage()), self._model)
        for model, usage in outcome.tool_usage.items():
            self._spend(usage, model)


class _StageChoice(NullChoice):
    """Shows the steps of a sub-agent below the stage of its call, and nothing of what it writes."""

    def __init__(self, stage: StageSink) -> None:
        self._stage = stage

    def create_stage(self, name: str | None = None) -> StageSink:
        return self._stage.create_stage(name)


def _options(options: ModelOptions) -> ModelOptions:
    extra = {name: value for name, value in options.extra.items() if name != "response_format"}
    return replace(options, tool_choice=None, extra=extra)


def _kept(added: Sequence[Message], room: int) -> Sequence[Message]:
    def size(message: Message) -> int:
        return len(json.dumps(message.as_stored()))

    def slim(item: Attachment) -> bool:
        return item.url is not None or number_of(item) is not None

    kept = [replace(message, attachments=tuple(filter(slim, message.attachments))) for message in added]
    if sum(map(size, kept)) <= room:
        return kept
    kept = [replace(message, reasoning_content=None) for message in kept]
    return shortened(kept, Budget(tokens=room), size, (2_000, 200), _CUT)
