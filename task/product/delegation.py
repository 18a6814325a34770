"""Sub-agents: a task for another loop with a context of its own, of which the answer alone comes back."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from task.conversation.inner import DELEGATE, INNER, inner, interim, transcript
from task.conversation.inputs import timed
from task.conversation.messages import Attachment, Message, Role, ToolCall, unanswered, user
from task.conversation.pruning import Budget, shortened
from task.conversation.sources import number_of
from task.errors import ProviderError, ToolError
from task.llm.base import Usage
from task.llm.failures import explained
from task.local.model.weights import CODER
from task.loop import LAST_ANSWER_SECONDS, Limits, LoopObserver, RunOutcome, ToolLoop
from task.output.links import Suspicion
from task.output.sanitizer import defanged
from task.output.sinks import DefangedStage, NullChoice
from task.permissions.decisions import Decision
from task.permissions.gate import PolicyGate
from task.permissions.names import own_name
from task.permissions.taint import ContextView, Origin
from task.product.profile import Profile
from task.settings.sections import AgentSettings
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.find_tools import MOST_LISTED, FindTools
from task.tools.models import Caller, ToolCallParams
from task.tools.toolbox import PARALLEL_CALLS, Paused, Toolbox, named

LEAST_SHARE = 1_000  # tokens of one sub-agent
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
_TOO_LITTLE = "the sub-agents of this run have {} left; start no more than that, or do the rest without them"
_KEPT = (2_000, 200)  # characters of each result where they do not fit
_CUT = "\n[cut: shortened while the user was asked; call the tool again if the rest is needed]\n"


async def sub_agents(
    profile: Profile, key: str, tools: Sequence[BaseTool], gate: PolicyGate, view: ContextView, observer: LoopObserver
) -> list[BaseTool]:
    """The tool that delegates to sub-agents with these tools; none where the profile or its model has no sub-agents."""
    agents, limit = profile.agents, profile.window(key).limit
    if agents is None or not tools or not profile.rules.policy.offers(DELEGATE) or DELEGATE in named(tools):
        return []
    tokens = await limit() if limit is not None else None
    too_small = profile.model == CODER.name or (tokens is not None and tokens < LEAST_TOKENS)
    return [] if too_small else profile.kept([DelegateTool(profile, agents, agents.steps, tools, gate, view, observer)])


@dataclass(eq=False)
class DelegateTool(BaseTool):
    """Runs a sub-agent for each call, with the gate of the agent's own turn, whose conversation is `view`.

    The `steps` are for all sub-agents of the turn: those of one step of the agent divide what is left of them, and of
    the run's tokens.
    """

    profile: Profile
    agents: AgentSettings
    steps: int
    tools: Sequence[BaseTool]
    gate: PolicyGate
    view: ContextView
    observer: LoopObserver

    def __post_init__(self) -> None:
        names = {"type": "array", "items": {"type": "string"}, "description": "Tools it gets; default: all"}
        models = {"model": {"type": "string", "enum": [*self.agents.models]}} if self.agents.models else {}
        shape = object_schema("task", task=text(_TASK, minLength=1, maxLength=TASK_CHARS), tools=names, **models)
        seconds = self.profile.limits.run_seconds
        # Of no effect by itself: the sub-agent's own calls are decided one by one.
        self.spec = ToolSpec(DELEGATE, DESCRIPTION, shape, frozenset(), Origin.MADE, timeout=seconds)

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        params, call, limits = tool_call_params, tool_call_params.tool_call, self.profile.limits
        arguments, before = params.arguments or {}, transcript(params.earlier, call.id)
        together = sum(item.name == DELEGATE for item in unanswered(params.earlier)) or 1
        steps, tokens = min(self.steps // together, limits.steps), limits.run_tokens
        if steps < 1:
            raise ToolError(_TOO_LITTLE.format(f"{self.steps} steps"))
        if tokens is not None:
            left = max(tokens - params.known_caller.used() - (limits.spent.tokens if limits.spent else 0), 0)
            tokens = left // together
            if tokens < LEAST_SHARE and not before:  # its first request alone would take more
                raise ToolError(_TOO_LITTLE.format(f"{left} tokens"))
        seconds = params.seconds or limits.run_seconds
        seconds = max(seconds - LAST_ANSWER_SECONDS, seconds / 2)  # it is to answer before its call is stopped
        share = Limits(steps, limits.tool_seconds, seconds, tokens)
        profile = replace(self.profile, model=arguments.get("model", self.profile.model), limits=share)
        outcome, messages, suspicion = await self._run(profile, params, together)
        self.steps -= max(sum(bool(item.tool_calls) for item in outcome.added), 1)
        if outcome.status == "suspended":
            room = Budget(tokens=KEPT_CHARS // together - sum(map(_size, before)))
            stored = [replace(item, attachments=tuple(filter(_is_kept, item.attachments))) for item in outcome.added]
            kept = interim(call, shortened(stored, room, _size, _KEPT, _CUT))
            waiting = (replace(item, call=inner(call, item.call)) for item in outcome.pending)
            return Paused(Role.TOOL, kept.content, memo=kept.memo, interim=True, waiting=tuple(waiting))
        results = [item for item in messages[2:] if item.role is Role.TOOL]
        if (error := outcome.error) is not None:
            why = explained(error, profile.model) if isinstance(error, ProviderError) else str(error)
            called = ", ".join(item.name or "" for item in results) or "none"
            raise ToolError(f"the sub-agent failed: {why} Calls that it had made: {called}")
        # Judged by what the sub-agent has read: the stage of this call belongs to a conversation without it.
        said = defanged(outcome.answer.text(), suspicion) or "The sub-agent gave no answer."
        note = f"\n\n[The sub-agent stopped at {outcome.limit}.]" if outcome.limit else ""
        files = dict.fromkeys(item for result in results for item in result.attachments if number_of(item) is None)
        return Message(Role.TOOL, said + note, attachments=(*[*files][-MAX_FILES:], *params.sources.cited(said)))

    async def _run(
        self, profile: Profile, params: ToolCallParams, together: int
    ) -> tuple[RunOutcome, list[Message], Suspicion]:
        """The sub-agent's outcome, its whole conversation, and what of its text is suspicious; it continues behind the
        messages that an earlier turn has left."""
        call, caller, sources, outer = params.tool_call, params.known_caller, params.sources, self.view
        arguments, before = params.arguments or {}, transcript(params.earlier, call.id)
        if caller.conversation_id:  # so that what servers keep for it, such as variables, is its own
            caller = replace(caller, conversation_id=f"{caller.conversation_id}{INNER}{call.id}")
        tools, wanted = self.tools, {*arguments.get("tools", ()), *map(own_name, arguments.get("tools", ()))}
        for finder in (tool for tool in tools if isinstance(tool, FindTools) and tool.name in wanted):
            wanted |= finder.names
        if wanted and not (tools := [tool for tool in self.tools if tool.name in wanted]):
            raise ToolError(f"none of these tools is here; there are {', '.join([*named(self.tools)][:MOST_LISTED])}")
        # The agent's own prompt, with its date, personas and context.
        prompt = replace(outer.messages[0], content=f"{outer.messages[0].text()}\n\n{PROMPT}")
        asked = replace(user(arguments["task"]), scrub_pii=any(item.scrub_pii for item in params.earlier))
        [asked], _ = timed([asked], profile.clock(), caller.headers, profile.timezone, self.observer.warned)
        messages = [prompt, asked, *(sources.adopted(item) if item.role is Role.TOOL else item for item in before)]
        view = ContextView(messages, {tool.name: tool.origin for tool in tools}, outer, 2)
        suspicion = Suspicion(view.knows, lambda: view.tainted, profile.link_hosts)
        stage = DefangedStage(params.stage, suspicion)
        extra = {name: value for name, value in profile.options.extra.items() if name != "response_format"}
        options = replace(profile.options, tool_choice=None, stop=None, extra=extra)
        toolbox = Toolbox(
            tools,
            replace(self.gate, within=call),
            profile.offloader,
            profile.limits.tool_seconds,
            briefed=True,
            aliases=profile.aliases,
            sources=sources,
            room=ASKED_CHARS,
            context=view,
            parallel=max(PARALLEL_CALLS // together, 1),
        )
        model, window = profile.backend.chat_model(profile.model, caller), profile.window(caller.api_key)
        inside = _Inside(self.observer, call, self.gate, caller, profile.model)
        loop = ToolLoop(model, toolbox, profile.limits, inside, options, window=window)
        return await loop.run(messages, NullChoice(stage), caller), messages, suspicion


class _Inside(LoopObserver):
    """Reports what the sub-agent does to the observer of its agent's turn, and its tokens as those of the run."""

    def __init__(self, then: LoopObserver, call: ToolCall, gate: PolicyGate, caller: Caller, model: str) -> None:
        super().__init__(then)
        self._call, self._keep, self._spend, self._model = call, gate.refresh, caller.spend, model

    async def before_request(self, *, last: bool) -> None:
        if self._keep is not None:  # what its calls have done is on disk before its model thinks about it
            await self._keep()

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        super().call_ended(self._call, interim(self._call, [message]), seconds)

    def decided(self, call: ToolCall, decision: Decision) -> None:
        super().decided(inner(self._call, call), decision)

    def call_ended(self, call: ToolCall, message: Message, seconds: float) -> None:
        super().call_ended(inner(self._call, call), message, seconds)
        super().call_ended(self._call, interim(self._call, [message]), seconds)

    def limit_hit(self, limit: str) -> None:
        """Not the run's."""

    def run_ended(self, outcome: RunOutcome) -> None:
        own = outcome.usage - sum(outcome.tool_usage.values(), Usage())
        for model, usage in ((self._model, own), *outcome.tool_usage.items()):
            self._spend(usage, model)


def _size(message: Message) -> int:
    return len(json.dumps(message.as_stored()))


def _is_kept(item: Attachment) -> bool:
    return bool(item.url) or number_of(item) is not None
