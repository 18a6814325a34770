"""One turn: find the tools, resolve pictures, compose the prompt, gate, loop, and sanitise what was written."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from task.approvals.approvals import EXPIRED, Approvals
from task.context.prompt import ContextPrompt
from task.conversation.inner import DELEGATE, waiting_calls
from task.conversation.inputs import Answer, timed
from task.conversation.messages import FOLDER, Message, Role, attached, frozen_data, interrupted, system, unanswered
from task.conversation.sources import Sources
from task.conversation.state import TurnState
from task.errors import InvalidRequest
from task.llm.base import Usage
from task.llm.pictures import with_pictures
from task.loop import PIECE, LoopObserver, RunOutcome, Spent, ToolLoop
from task.memory.memories import Memories
from task.memory.recall import Recall, RemindedModel, recalled
from task.output.links import Suspicion
from task.output.sanitizer import defanged
from task.output.sinks import ChoiceSink, DefangedChoice, ForwardingChoice
from task.permissions.gate import PolicyGate
from task.permissions.names import names_of, own_name
from task.permissions.taint import ContextView
from task.product import Profile, Services
from task.product.delegation import sub_agents
from task.product.names import named_tools
from task.product.profile import available, context_tools
from task.product.skills import picked_calls, prompts_of, skill_tools, skills_of
from task.skills import READ_SKILL
from task.telemetry.operations import RunInfo, count
from task.tools.base import BaseTool
from task.tools.declare import ClientToolsGate
from task.tools.dial_files.tools import dial_file_tools
from task.tools.find_tools import FIND_TOOLS, within_share
from task.tools.models import Caller
from task.tools.skills.read_skill_tool import not_allowed
from task.tools.toolbox import Toolbox, named
from task.tools.workspace.tools import READS, WorkspaceTool


@frozen_data
class TurnRequest:
    """One request to the agent, whichever door it came through.

    `messages` are the whole conversation without a system prompt; calls without a result at its end are made first.
    `state` is what its last turn has left: grants, and calls that wait for the user's `answers`, one for each; None
    stands for a question that has expired. `own_tools` are functions that the caller runs, `door` is the one that the
    request came through. `sources` are those of the messages, where the door follows what is cited. `skills` are those
    that the user picked for the newest message: names, or addresses `skills/{bucket}/{path}`. `recall` is what
    the model gets of the user's memory.
    """

    messages: Sequence[Message]
    caller: Caller
    state: TurnState | None = None
    own_tools: Sequence[BaseTool] = ()
    sources: Sources | None = None
    answers: Sequence[Answer | None] = ()
    door: str = ""
    skills: tuple[str, ...] = ()
    recall: Recall | None = None

    @property
    def own_names(self) -> set[str]:
        return {tool.name for tool in self.own_tools}


async def take_turn(
    services: Services, profile: Profile, request: TurnRequest, choice: ChoiceSink, observer: LoopObserver
) -> RunOutcome:
    """Answer `request` into `choice`; every failure, and a cancellation, is an outcome.

    The messages that were added are as users saw them: addresses that the model made up are plain text.
    """
    model, caller, answers = profile.model, request.caller, request.answers
    asked = waiting_calls(request.messages) if answers else ()
    approvals = await Approvals.of(profile.rules, caller, request.state, answers, asked)
    if approvals.said:
        request = replace(request, caller=replace(caller, said=approvals.said))
    info = RunInfo(request.door, model, profile.backend.provider, caller.conversation_id, observer.trace_id)
    with services.telemetry.run(info, caller.headers) as measured:
        for reason in approvals.denials.values():
            count("approval", "expired" if EXPIRED.startswith(reason) else "denied")
        for grant in approvals.grants.list():
            if grant.once:
                count("approval", "allowed")
        messages, base, view = list[Message](), 0, ContextView()
        try:
            context, gate = await profile.context_prompt(found=observer.warned), approvals.gate(profile.mode)
            request, gate, tools, note = await _tools(services, profile, request, gate, context, choice)
            seen = request.messages
            if any(attached(seen)) or list in (type(item.content) for item in seen):
                seen = await _with_pictures(services, profile, request)
            seen, today = timed(seen, profile.clock(), caller.headers, profile.timezone, observer.warned)
            prompt = "\n\n".join(filter(None, (profile.prompt, context.text, today))) + note
            # The instructions of an application are text from outside, and what skills of others are for, which stands
            # in a tool's description.
            skills = request.caller.skills
            outside = bool(profile.application) or context.foreign
            outside = outside or (bool(skills) and any(skill.source != "operator" for skill in skills))
            messages = [replace(system(prompt), unsourced=outside), *seen]
            base = len(messages)
            facts = request.recall is not None and bool(request.recall.note)
            view = ContextView(messages, {tool.name: tool.origin for tool in tools}, recalled=facts)
            await view.prepare()
            outcome = await _looped(profile, request, gate, tools, messages, view, choice, observer)
        except asyncio.CancelledError:
            outcome = RunOutcome("cancelled", interrupted(messages[base:]), Usage())
        except Exception as error:
            outcome = RunOutcome("failed", interrupted(messages[base:]), Usage(), error=error)
        messages[base:] = outcome.added
        is_long = sum(len(f"{item.content}{item.reasoning_content}") for item in outcome.added) > 4 * PIECE
        where = view, base, profile.link_hosts  # what is long would hold the event loop
        added = await asyncio.to_thread(_as_shown, *where) if is_long else _as_shown(*where)
        outcome = replace(outcome, added=added, grants=tuple(approvals.grants.lasting()))
        measured.status = outcome.status
        if outcome.error is not None:
            measured.failed(outcome.error)
        cost = services.store.cost(model, used := outcome.usage, outcome.tool_usage)
        measured.used(used.prompt_tokens, used.completion_tokens, used.cached_tokens, cost)
        for item in outcome.pending:
            if item.call.name not in request.own_names:
                count("approval", "asked")
    return outcome


async def remembering(
    memories: Memories, profile: Profile, request: TurnRequest, observer: LoopObserver
) -> tuple[Profile, TurnRequest]:
    """The turn with what its user lets the agent remember: facts behind the newest message, and tools for others.

    Without the user's consent there is neither, nor the tools of a server that takes their place.
    """
    recall = await recalled(memories, request.caller, request.door, request.messages, observer.warned)
    if memories.server:
        return (profile if recall is not None else replace(profile, withheld=memories.server)), request
    if recall is None:
        return profile, request
    observer.recalled([fact.id for fact in recall.facts])
    # An application's instructions are text from outside, after which nothing is remembered.
    more = [tool for tool in recall.tools if not profile.application and tool.name not in named(profile.tools)]
    return replace(profile, tools=[*profile.tools, *more]), replace(request, recall=recall)


async def _with_pictures(services: Services, profile: Profile, request: TurnRequest) -> Sequence[Message]:
    facts, key = profile.backend.facts, request.caller.api_key
    sees = partial(facts.accepts_images, profile.model, key) if facts else None
    return await with_pictures(request.messages, services.files, key, sees, fetched=profile.backend.fetches_files)


async def _tools(
    services: Services,
    profile: Profile,
    request: TurnRequest,
    gate: PolicyGate,
    context: ContextPrompt,
    choice: ChoiceSink,
) -> tuple[TurnRequest, PolicyGate, list[BaseTool], str]:
    """The request with the turn's skills and the gate that holds to what they allow, all tools of the turn, and a note
    for the model about servers that are missing."""
    wanted, key = profile.options.tool_choice, request.caller.api_key
    if wanted == "none" and not unanswered(request.messages):  # calls that were approved run all the same
        return request, gate, [], ""
    own: Sequence[BaseTool] = [*profile.tools, *context_tools(profile.context, context)]
    if services.mcp.user_sign_ins is not None and request.door != "dial":  # where there is no place to sign in
        own = [*own, *services.mcp.user_sign_ins.tools()]
    if not any(isinstance(tool, WorkspaceTool) for tool in own):  # a coding run brings those of its own workspace
        own = [*own, *(tool for tool in await profile.workspace_tools(request.caller) if tool.name not in named(own))]
    own, policy = profile.kept(own), profile.rules.policy
    if attached := [file for item in request.messages if item.role is Role.USER for file in item.attachments]:
        for tool in own:
            if policy.offers(tool.name):
                tool.prepare(attached)
    may_have = services.applications.allows if profile.application else bool  # bool: whatever has a name
    if profile.folders or any(file.type == FOLDER for file in attached):
        reading = [tool for tool in dial_file_tools(services.files) if tool.effects <= READS and may_have(tool.name)]
        own = [*own, *(tool for tool in reading if tool.name not in named(own))]
    skilled = request.skills or profile.skills or profile.skill_urls or services.mcp.prompting
    if skilled or READ_SKILL in (item.name for item in request.messages):
        skills = await skills_of(services, profile, request.caller, request.skills, request.messages)
        gate = replace(gate, refusal=partial(not_allowed, skills))
        prompts = await prompts_of(services, profile, request.caller) if services.mcp.prompting else []
        if reading := skill_tools(services, profile, [*skills, *prompts]):
            request = replace(request, caller=replace(request.caller, skills=skills))
            own = [*own, *reading]
    taken = named(own)
    own = await available(services, profile, own, key)  # known already in all but one request a minute
    if context.tools:
        profile = replace(profile, names=(*profile.names, *filter(may_have, context.tools)))
    discover = partial(named_tools, services, profile) if profile.names or profile.servers else services.mcp.discover
    found = await discover(request.caller, taken)
    found.show(choice)
    offered = [tool for tool in (*own, *profile.kept(found.tools)) if policy.offers(tool.name)]
    theirs = request.own_names
    tools = [tool for tool in offered if theirs.isdisjoint(names_of(tool.name))]  # the caller's come first
    tools += request.own_tools
    name = wanted["function"]["name"] if isinstance(wanted, Mapping) else None
    if name is not None and {name, own_name(name)}.isdisjoint(named(tools)):
        raise InvalidRequest(f"tool_choice names {name!r}, which is no tool of yours or of the agent's.")
    if any(tool.offered_by for tool in tools) and policy.offers(FIND_TOOLS):
        tools = await within_share(tools, profile.tool_share, profile.window(key).limit, keep=name)
    return request, gate, tools, found.note()


async def _looped(
    profile: Profile,
    request: TurnRequest,
    gate: PolicyGate,
    tools: Sequence[BaseTool],
    messages: list[Message],
    view: ContextView,
    choice: ChoiceSink,
    observer: LoopObserver,
) -> RunOutcome:
    own, limits, sources = request.own_names, profile.limits, request.sources or Sources(messages)
    if profile.agents is not None and DELEGATE not in own:
        ours = [tool for tool in tools if tool.name not in own]
        tools = [*await sub_agents(profile, request.caller.api_key, ours, gate, view, observer), *tools]
    toolbox = Toolbox(
        tools,
        ClientToolsGate(gate, own) if own else gate,
        profile.offloader,
        limits.tool_seconds,
        briefed=True,
        aliases=profile.aliases,
        sources=sources,
        repeats=(limits.spent or Spent()).repeats,
        context=view,
    )
    options, wanted = profile.options, profile.options.tool_choice
    if isinstance(wanted, Mapping):
        function = {**wanted["function"], "name": toolbox.names.offered(wanted["function"]["name"])}
        options = replace(options, tool_choice={**wanted, "function": function})
    safe = DefangedChoice(choice, _suspicion(view, None, profile.link_hosts))
    wants_json = (options.extra.get("response_format") or {}).get("type", "text") != "text"
    formed = JsonChoice(safe, observer, own) if wants_json else None
    model = profile.backend.chat_model(profile.model, request.caller)
    loop = ToolLoop(
        RemindedModel(model, request.recall) if request.recall is not None and request.recall.note else model,
        toolbox,
        limits,
        formed or observer,
        options=options,
        window=profile.window(request.caller.api_key),
    )
    picked = picked_calls(request.messages, request.skills, tools) if request.skills else []
    messages += picked
    try:
        outcome = await loop.run(messages, formed or safe, request.caller)
    finally:
        if formed is not None:
            formed.close()
        safe.close()
    outcome = _cited(outcome, sources, choice)
    return replace(outcome, added=(*picked, *outcome.added)) if picked else outcome


def _cited(outcome: RunOutcome, sources: Sources, choice: ChoiceSink) -> RunOutcome:
    said = [place for place, message in enumerate(outcome.added) if message.role is Role.ASSISTANT]
    cited = tuple(sources.cited("\n".join(outcome.added[place].text() for place in said)))
    if outcome.status == "suspended" or not cited:
        return outcome
    for item in cited:
        choice.add_attachment(**item.as_dict())
    added = list(outcome.added)
    last = added[said[-1]]
    added[said[-1]] = replace(last, attachments=(*last.attachments, *cited))
    return replace(outcome, added=tuple(added))


def _suspicion(view: ContextView, before: int | None, hosts: Sequence[str]) -> Suspicion:
    return Suspicion(partial(view.knows, before=before), partial(view.tainted_before, before), hosts)


def _as_shown(view: ContextView, base: int, hosts: Sequence[str]) -> tuple[Message, ...]:
    # Each message is made harmless on its own, judged by what stood before it, as the stream was as a whole.
    shown = list[Message]()
    for place, message in enumerate(view.messages[base:], base):
        if message.role is Role.ASSISTANT:
            suspicion = _suspicion(view, place, hosts)
            content, thoughts = message.content, message.reasoning_content
            content = defanged(content, suspicion) if isinstance(content, str) else content
            message = replace(message, content=content, reasoning_content=thoughts and defanged(thoughts, suspicion))
        shown.append(message)
    return tuple(shown)


class JsonChoice(ForwardingChoice, LoopObserver):
    """A choice for an answer that is to be JSON: what the model says before it calls a tool of ours is left out.

    Text is shown as soon as it looks like an object, any other when its step is known to be the last. It follows the
    steps as the loop's observer and passes everything on to `observer`; a step that ends in calls of `own`, the
    caller's tools, is an answer too. Call `close` at the end.
    """

    def __init__(self, choice: ChoiceSink, observer: LoopObserver, own: set[str]) -> None:
        ForwardingChoice.__init__(self, choice)
        LoopObserver.__init__(self, observer)
        self._own = own
        self._held = ""
        self._showing = self._spoke = False

    def append_content(self, content: str) -> None:
        if self._showing:
            self._sink.append_content(content)
            return
        self._held += content
        if self._held.lstrip().startswith("{"):
            self._showing = True
            self.close()

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        ours = bool(message.tool_calls) and not any(call.name in self._own for call in message.tool_calls)
        self._held = "" if ours else self._held
        self.close()
        self._showing = False
        super().model_answered(message, usage, seconds)

    def close(self) -> None:
        """Show what was kept back."""
        text, self._held = self._held if self._spoke else self._held.lstrip("\n"), ""
        if text:
            self._spoke = True
            self._sink.append_content(text)
