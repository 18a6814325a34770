"""One turn: find the tools, resolve pictures, compose the prompt, gate, loop, and sanitise what was written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from task.approvals.approvals import EXPIRED, Approvals
from task.context.prompt import ContextPrompt
from task.conversation.history import repaired, unanswered
from task.conversation.messages import Attachment, CustomContent, Message, Role, system
from task.conversation.sources import Sources
from task.errors import InvalidRequest
from task.llm.base import ModelOptions, Usage
from task.loop import ForwardingObserver, LoopObserver, RunOutcome, Spent, ToolLoop
from task.output.links import Suspicion
from task.output.sanitizer import defanged
from task.output.sinks import ChoiceSink, DefangedChoice, ForwardingChoice
from task.permissions.names import names_of, own_name
from task.permissions.taint import ContextView
from task.pictures import with_pictures
from task.product import Profile, Services
from task.product.profile import available, context_tools
from task.store.access import StoreAccess
from task.store.trace_records import Price, cost_of, usage_by_model
from task.telemetry.operations import RunInfo, count
from task.tools.base import BaseTool
from task.tools.client_tools import ClientToolsGate
from task.tools.models import Caller
from task.tools.toolbox import Toolbox, named
from task.tools.workspace.tools import WorkspaceTool


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One request to the agent, whichever door it came through.

    `messages` are the whole conversation without a system prompt; calls without a result at its end are made first.
    `approvals` are the decisions about calls so far, `own_tools` functions that the caller runs. `spent` is what
    earlier turns of the same run have used of the profile's limits. `door` is the one that the request came through,
    `trace_id` that of its trace where the store gives one before it starts.
    """

    messages: Sequence[Message]
    caller: Caller
    approvals: Approvals
    own_tools: Sequence[BaseTool] = ()
    spent: Spent | None = None
    door: str = ""
    trace_id: str = ""

    @property
    def own_names(self) -> set[str]:
        return {tool.name for tool in self.own_tools}


async def take_turn(
    services: Services, profile: Profile, request: TurnRequest, choice: ChoiceSink, observer: LoopObserver
) -> RunOutcome:
    """Answer `request` into `choice`; every failure, and a cancellation, is an outcome.

    The messages that were added are as people saw them: addresses that the model made up are plain text.
    """
    whose = request.caller.conversation_id
    info = RunInfo(request.door, profile.model, profile.backend.provider, whose, request.trace_id)
    with services.telemetry.run(info, request.caller.headers) as measured:
        _count_answers(request.approvals)
        outcome = await _taken(services, profile, request, choice, observer)
        measured.ended(outcome.status)
        if outcome.error is not None:
            measured.failed(outcome.error)
        usage = outcome.usage
        cost = _cost(services.store, profile.model, usage, outcome.tool_usage)
        measured.used(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens, cost)
        for item in outcome.pending:
            if item.call.name not in request.own_names:
                count("approval", "asked")
    return outcome


def _cost(store: StoreAccess, model: str, usage: Usage, of_tools: Mapping[str, Usage]) -> float | None:
    # Tokens of models behind tools included; None where the run's own model has no price.
    if model not in store.prices:
        return None
    prices = {name: Price(*pair) for name, pair in store.prices.items()}
    return cost_of(model, usage_by_model(model, usage - sum(of_tools.values(), Usage()), of_tools), prices)


def _count_answers(approvals: Approvals) -> None:
    for reason in approvals.denials.values():
        count("approval", "expired" if EXPIRED.startswith(reason) else "denied")
    for grant in approvals.grants.list():
        if grant.once:
            count("approval", "allowed")


async def _taken(
    services: Services, profile: Profile, request: TurnRequest, choice: ChoiceSink, observer: LoopObserver
) -> RunOutcome:
    messages: list[Message] = []
    base, tools = 0, list[BaseTool]()

    def shown(added: Sequence[Message]) -> tuple[Message, ...]:
        def view(conversation: Sequence[Message]) -> ContextView:
            return ContextView(conversation, {tool.name: tool.origin for tool in tools})

        return _as_shown(messages[:base], added, view, profile.link_hosts)

    try:
        context = await profile.context_prompt()
        tools, note = await _tools(services, profile, request, context, choice)
        seen = await _seen(services, profile, request)
        prompt = "\n\n".join(filter(None, (profile.prompt, context.text))) + note
        messages = [*([system(prompt)] if prompt else ()), *seen]
        base = len(messages)
        outcome = await _looped(profile, request, tools, messages, choice, observer)
    except asyncio.CancelledError:
        return RunOutcome("cancelled", shown(interrupted(messages[base:])), Usage())
    except Exception as error:
        return RunOutcome("failed", shown(interrupted(messages[base:])), Usage(), error=error)
    return replace(outcome, added=shown(outcome.added))


async def _seen(services: Services, profile: Profile, request: TurnRequest) -> Sequence[Message]:
    if not any(message.custom_content is not None or isinstance(message.content, list) for message in request.messages):
        return request.messages  # the usual case, on the way of every request
    return await with_pictures(services, profile, request.messages, request.caller.api_key)


async def _tools(
    services: Services, profile: Profile, request: TurnRequest, context: ContextPrompt, choice: ChoiceSink
) -> tuple[list[BaseTool], str]:
    """All tools of the turn, and a note for the model about servers that are missing."""
    wanted = profile.options.tool_choice
    if wanted == "none" and not unanswered(request.messages):  # calls that were approved run all the same
        return [], ""
    own = [*profile.tools, *context_tools(profile.context, context)]
    if not any(isinstance(tool, WorkspaceTool) for tool in own):  # a coding run brings those of its own workspace
        own += [tool for tool in await profile.workspace_tools(request.caller) if tool.name not in named(own)]
    policy = profile.rules.policy
    if attached := _attached(request.messages):
        for tool in own:
            if policy.offers(tool.name):
                tool.prepare(attached)
    taken = named(own)
    # Known already in all but one request a minute.
    own = await available(services, profile, own, request.caller.api_key)
    found = await services.mcp.discover(request.caller, taken)
    found.show(choice)
    offered = [tool for tool in (*own, *found.tools) if policy.offers(tool.name)]
    theirs = request.own_names  # come first
    tools = [tool for tool in offered if theirs.isdisjoint(names_of(tool.name))]
    tools += request.own_tools
    name = wanted["function"]["name"] if isinstance(wanted, Mapping) else None
    if name is not None and {name, own_name(name)}.isdisjoint(named(tools)):
        raise InvalidRequest(f"tool_choice names {name!r}, which is no tool of yours or of the agent's.")
    return tools, found.note()


def _attached(messages: Sequence[Message]) -> list[Attachment]:
    contents = [message.custom_content for message in messages if message.role is Role.USER]
    return [item for content in contents if content is not None for item in content.attachments]


async def _looped(
    profile: Profile,
    request: TurnRequest,
    tools: Sequence[BaseTool],
    messages: list[Message],
    choice: ChoiceSink,
    observer: LoopObserver,
) -> RunOutcome:
    own = request.own_names
    gate = request.approvals.gate(profile.mode)
    gate = ClientToolsGate(gate, own) if own else gate
    sources, spent = Sources(messages), request.spent or Spent()
    toolbox = Toolbox(
        tools, gate, profile.offloader, profile.limits.tool_seconds, briefed=True, aliases=profile.aliases,
        sources=sources, repeats=spent.repeats,
    )  # fmt: skip
    safe = DefangedChoice(choice, _suspicion(lambda: toolbox.view(messages), profile.link_hosts))
    options = _with_offered_choice(profile.options, toolbox)
    formed = JsonChoice(safe, observer, own) if _wants_json(options) else None
    loop = ToolLoop(
        profile.backend.chat_model(profile.model, request.caller),
        toolbox,
        profile.limits,
        formed or observer,
        options=options,
        window=profile.window(request.caller.api_key),
        spent=spent,
    )
    try:
        outcome = await loop.run(messages, formed or safe, request.caller)
    finally:
        if formed is not None:
            formed.close()
        safe.close()
    return _cited(outcome, sources, choice)


def _cited(outcome: RunOutcome, sources: Sources, choice: ChoiceSink) -> RunOutcome:
    said = [place for place, message in enumerate(outcome.added) if message.role is Role.ASSISTANT]
    if outcome.status == "suspended" or not said:
        return outcome
    cited = tuple(sources.cited("\n".join(outcome.added[place].text() for place in said)))
    for item in cited:
        choice.add_attachment(**item.as_dict())
    added = list(outcome.added)
    if cited:
        last = added[said[-1]]
        own = last.custom_content.attachments if last.custom_content else ()
        added[said[-1]] = replace(last, custom_content=CustomContent((*own, *cited)))
    return replace(outcome, added=tuple(added))


def _with_offered_choice(options: ModelOptions, toolbox: Toolbox) -> ModelOptions:
    wanted = options.tool_choice
    if not isinstance(wanted, Mapping):
        return options
    name = toolbox.names.offered(wanted["function"]["name"])
    return replace(options, tool_choice={**wanted, "function": {**wanted["function"], "name": name}})


def interrupted(added: Sequence[Message]) -> tuple[Message, ...]:
    """What a turn that broke off has added, each of its calls answered; results in front answer earlier calls."""
    resumed = list(takewhile(lambda message: message.role is Role.TOOL, added))
    return (*resumed, *repaired(added[len(resumed) :]))


def _suspicion(view: Callable[[], ContextView], hosts: Sequence[str]) -> Suspicion:
    return Suspicion(lambda url: view().knows(url), lambda: view().tainted, hosts)


def _as_shown(
    before: Sequence[Message],
    added: Sequence[Message],
    view: Callable[[Sequence[Message]], ContextView],
    hosts: Sequence[str],
) -> tuple[Message, ...]:
    """The added messages, each harmless on its own: judged by what stood before it, as the stream was as a whole."""
    whole = [*before, *added]

    def harmless(text: str, place: int) -> str:
        return defanged(text, _suspicion(lambda: view(whole[:place]), hosts))

    def shown(message: Message, place: int) -> Message:
        content, thoughts = message.content, message.reasoning_content
        if message.role is not Role.ASSISTANT or not (content or thoughts):
            return message
        return replace(
            message,
            content=harmless(content, place) if isinstance(content, str) else content,
            reasoning_content=harmless(thoughts, place) if thoughts else thoughts,
        )

    return tuple(shown(message, place) for place, message in enumerate(added, len(before)))


def _wants_json(options: ModelOptions) -> bool:
    return (options.extra.get("response_format") or {}).get("type", "text") != "text"


class JsonChoice(ForwardingChoice, ForwardingObserver):
    """A choice for an answer that is to be JSON: what the model says before it calls a tool of ours is left out.

    Text is shown as soon as it looks like an object, any other when its step is known to be the last. It follows the
    steps as the loop's observer and passes everything on to `observer`; a step that ends in calls of `own`, the
    caller's tools, is an answer too. Call `close` at the end.
    """

    def __init__(self, choice: ChoiceSink, observer: LoopObserver, own: set[str]) -> None:
        ForwardingChoice.__init__(self, choice)
        ForwardingObserver.__init__(self, observer)
        self._own = own
        self._held = ""
        self._showing = self._spoke = False

    def append_content(self, content: str) -> None:
        if self._showing:
            self._choice.append_content(content)
            return
        self._held += content
        if self._held.lstrip().startswith("{"):
            self._showing = True
            self._show()

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        ours = bool(message.tool_calls) and not any(call.name in self._own for call in message.tool_calls)
        self._held = "" if ours else self._held
        self._show()
        self._showing = False
        self._observer.model_answered(message, usage, seconds)

    def close(self) -> None:
        """Show what was kept back."""
        self._show()

    def _show(self) -> None:
        text, self._held = self._held if self._spoke else self._held.lstrip("\n"), ""
        if text:
            self._spoke = True
            self._choice.append_content(text)
