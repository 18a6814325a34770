"""GeneralPurposeAgent: one DIAL request, from its messages to the saved state."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from typing import Any, cast
from uuid import uuid4

from aidial_sdk.chat_completion import Choice, Request, Response
from aidial_sdk.chat_completion import Message as DialMessage
from aidial_sdk.chat_completion.chunks import BaseChunk

from task.approvals.approvals import decision_of
from task.approvals.questions import said_in
from task.conversation.inner import outer_id
from task.conversation.inputs import Incoming, conversation
from task.conversation.messages import Message, ToolCall, assistant, attached, repaired, system, tool_message
from task.conversation.sources import Sources
from task.conversation.state import TOOL_CALL_HISTORY_KEY, StateRejected, StateSeal, TurnState, turn_history
from task.dial.approvals import DialApprovals
from task.dial.citations import Citations
from task.dial.request import CallerLimit, DialRequest, incoming_of
from task.errors import ToolError
from task.llm.base import Usage
from task.loop import LoopObserver, RunOutcome
from task.output.sinks import ChoiceSink, ForwardingChoice, ForwardingStage, StageProcessor, StageSink, StageStatus
from task.product import Profile, Services
from task.product.opening import opened_bare
from task.shares import ON_BEHALF_OF
from task.store.trace_records import usage_by_model
from task.tools.base import BaseTool
from task.tools.models import TOOLS, Caller
from task.tools.toolbox import Toolbox, named
from task.turn import TurnRequest, remembering, take_turn

logger = logging.getLogger(__name__)

CONVERSATION_REFERENCE = "conversation"
CUT_OFF = "\n\n[The answer was cut off at the model's token limit.]"
SHOWN = 2  # DIAL Chat shows three stages before it folds; the third one holds all others
TITLE = "Further steps"


class GeneralPurposeAgent:
    """Answers DIAL requests with a model and tools. Source: API reference, GeneralPurposeAgent.

    `state` is the hidden state of the last request. Without the process's services and profile the agent makes its own
    for `endpoint`, and without the process's `seal` one of its own. `observer` follows the run, `limit`
    counts the caller's others.
    """

    def __init__(
        self,
        endpoint: str,
        system_prompt: str,
        tools: list[BaseTool],
        *,
        opened: tuple[Services, Profile] | None = None,
        seal: StateSeal | None = None,
        observer: LoopObserver | None = None,
        limit: CallerLimit | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.system_prompt = system_prompt
        self.tools = tools
        self._tools_dict = named(tools)
        self.state: dict[str, Any] = {TOOL_CALL_HISTORY_KEY: []}
        self._given, self._seal = opened, seal or StateSeal(secrets.token_bytes(32))
        self._observer = observer or LoopObserver()
        self._limit = limit

    async def handle_request(
        self, deployment_name: str, choice: Choice, request: Request, response: Response
    ) -> Message:
        """Parse `request`, then as `answer`: kept for programs that use the documented class by itself.

        Raises:
            InvalidRequest: the request cannot be answered as it is.
            ProviderError: the model refused or failed; text that was written and the state stay.
        """
        return await self.answer(deployment_name, choice, DialRequest.parse(request), response)

    async def answer(self, deployment_name: str, choice: Choice, request: DialRequest, response: Response) -> Message:
        """Answer the request into `choice`, save the state, and return the final assistant message.

        Raises:
            ProviderError: the model refused or failed; text that was written and the state stay.
            TooManyRuns: the caller has as many in progress as one may have.
        """
        identify = self._principal_of(request.api_key, request.owner)
        async with self._limit.admitted(identify) if self._limit is not None else nullcontext():
            (services, profile), incoming = self._opened, request.incoming
            states = _states(incoming)
            principal = await identify() if states else ""
            # Behind DIAL Core a first message has the key alone; asking Core would delay its answer.
            ON_BEHALF_OF.set(principal or request.owner or sha256(request.api_key.encode()).hexdigest())
            turns = self._turns(states, principal)
            # The saved id of the conversation comes first: a chat that was renamed sends another.
            saved = (turn.references.get(CONVERSATION_REFERENCE, "") for turn in reversed(turns.values()))
            conversation_id = next(filter(None, saved), "") or request.conversation_id or uuid4().hex
            files = tuple(attached(incoming))
            application = profile.application
            caller = Caller(request.api_key, identify, conversation_id, request.headers, files, application)
            approvals = DialApprovals(profile.rules, incoming, turns)
            if direct := await approvals.direct_answer(caller, services.memory):
                choice.append_content(direct.text)
                if direct.form is not None:
                    choice.set_form_schema(direct.form)
                no_tools = self._seal.no_tools(direct.text)
                self.state = self._seal.pack(direct.state, principal) if direct.state is not None else no_tools
                choice.set_state(self.state)
                return assistant(direct.text)
            resuming = approvals.resumed is not None
            messages = conversation(incoming, turns, decision_of, self._seal.no_tools, resuming=resuming)
            chosen = replace(
                profile,
                model=deployment_name,
                prompt=self.system_prompt,
                persona=request.configuration.persona or "",
                tools=self.tools,
                mode=request.configuration.permission_mode,
                options=profile.options_for(request.options),
            )
            answers, picked = approvals.answers or (), request.skills
            turn = TurnRequest(messages, caller, approvals.latest, answers=answers, door="dial", skills=picked)
            outcome = await self._take(services, chosen, turn, choice, approvals)
        if outcome.error is not None:
            raise outcome.error  # without usage: the SDK would send it in a chunk that no client can parse
        _report(response, deployment_name, outcome)
        return outcome.answer

    async def _take(
        self, services: Services, profile: Profile, turn: TurnRequest, choice: Choice, approvals: DialApprovals
    ) -> RunOutcome:
        # Who the caller is, is asked while the first tool runs, so that the end of the answer need not wait for it.
        sources, failed = Sources(turn.messages), True
        plain = "response_format" in profile.options.extra  # in JSON, a tag would be a fault
        send = choice.send_chunk if profile.annotations and not plain else None
        folded = FoldedChoice(choice, turn.caller.principal, sources, send)
        turn = replace(turn, sources=sources)
        try:
            if services.memory is not None:
                profile, turn = await remembering(services.memory, profile, turn, self._observer)
            outcome = await take_turn(services, profile, turn, folded, self._observer)
            if outcome.status == "cancelled":  # the client is gone, and there is no chat left to keep a state
                raise asyncio.CancelledError
            failed = outcome.status == "failed"
            if outcome.cut:
                folded.append_content(CUT_OFF)
            approvals.show_grants(outcome.grants, folded)
            if outcome.pending:
                question, form = approvals.ask(outcome.pending, folded, said_in(outcome.added))
                choice.append_content(question)
                choice.set_form_schema(form)
        finally:
            folded.close(failed=failed)
        resumed = approvals.resumed.history if approvals.resumed is not None else ()
        added = repaired([*resumed, *outcome.added], [outer_id(item.call.id) for item in outcome.pending])
        references = {CONVERSATION_REFERENCE: turn.caller.conversation_id}
        state = approvals.state(turn_history(added), outcome.pending, outcome.grants, references)
        no_tools = self._seal.no_tools("".join(folded.said))
        self.state = self._seal.pack(state, await turn.caller.principal()) if state is not None else no_tools
        if state is not None or outcome.error is None:  # nothing may be sent before an error that has a status
            choice.set_state(self.state)
        return outcome

    def _turns(self, states: Mapping[int, Mapping[str, Any]], principal: str) -> dict[int, TurnState]:
        """What the messages' states hold, by position; a state that is not ours for this principal is left out."""
        turns: dict[int, TurnState] = {}
        for position, state in states.items():
            try:
                turns[position] = self._seal.unpack(state, principal)
            except StateRejected as reason:
                logger.warning("a saved state was dropped: %s", reason)
        return turns

    def _prepare_messages(self, messages: list[DialMessage], principal: str = "") -> list[dict[str, Any]]:
        """The messages in OpenAI's format: system prompt, attachments as text, tool history sealed for `principal`.

        Kept for the documented name; requests go through `take_turn`, which also resolves pictures.
        """
        incoming = incoming_of(messages)
        history = conversation(incoming, self._turns(_states(incoming), principal), decision_of, self._seal.no_tools)
        return [message.as_dict() for message in (system(self.system_prompt), *history)]

    async def _process_tool_call(
        self, tool_call: ToolCall, choice: Choice, api_key: str, conversation_id: str
    ) -> Message:
        """Run one call in a stage of its own, without the gate's questions. Kept for the documented name."""
        caller = Caller(api_key, self._principal_of(api_key), conversation_id)
        _, profile = self._opened
        toolbox = Toolbox(self.tools, offloader=profile.offloader, tool_seconds=profile.limits.tool_seconds)
        [result] = await toolbox.call_all([tool_call], choice, caller)
        return result if isinstance(result, Message) else tool_message(tool_call, result.reason, failed=True)

    def _principal_of(self, api_key: str, owner: str = "") -> Callable[[], Awaitable[str]]:
        asking: asyncio.Future[str] | None = None

        async def ask() -> str:
            if owner:
                return f"http:{owner}"
            try:
                return await self._opened[0].files.principal(api_key)
            except ToolError as error:  # no Core, or one that does not answer: the key itself is the identity
                logger.warning("the caller's bucket is unknown: %s", error)
                return f"key:{sha256(api_key.encode()).hexdigest()[:32]}"

        async def principal() -> str:
            nonlocal asking
            asking = asking or asyncio.ensure_future(ask())
            return await asyncio.shield(asking)  # who asks first may be cancelled

        return principal

    @cached_property
    def _opened(self) -> tuple[Services, Profile]:
        return self._given or opened_bare(self.endpoint)


def _report(response: Response, model: str, outcome: RunOutcome) -> None:
    used = outcome.usage
    response.set_usage(used.prompt_tokens, used.completion_tokens)
    own = used - sum(outcome.tool_usage.values(), Usage())
    for name, part in usage_by_model(model, own, outcome.tool_usage).items():
        if name != TOOLS:  # tokens of tools that name no model
            response.add_usage_per_model(name, part.prompt_tokens, part.completion_tokens)
    if outcome.discarded:
        response.set_discarded_messages(list(outcome.discarded))


def _states(incoming: Sequence[Incoming]) -> dict[int, Mapping[str, Any]]:
    return {
        place: item.state
        for place, item in enumerate(incoming)
        if item.state and "version" in item.state and TOOL_CALL_HISTORY_KEY in item.state
    }


class FoldedChoice(ForwardingChoice):
    """A choice whose stages from the third on are sub-stages of one; everything else goes through.

    `at_first` is started with the first stage: there will be something to save at the end of the answer. What the text
    cites of the `sources` is annotated where there is `send`; `said` is the text without the tags.
    """

    def __init__(
        self,
        choice: ChoiceSink,
        at_first: Callable[[], Awaitable[object]] | None = None,
        sources: Sources | None = None,
        send: Callable[[BaseChunk], None] | None = None,
    ) -> None:
        super().__init__(choice)
        self._at_first = at_first
        self._sources, self._send, self._citations = sources, send, cast("Citations | None", None)
        self._started: asyncio.Future[object] | None = None
        self._created = 0
        self._group: StageSink | None = None
        self._steps: list[_Step] = []
        self.said: list[str] = []

    def append_content(self, content: str) -> None:
        self.said.append(content)
        if "]" in content and self._send is not None and self._sources is not None and self._sources.citations:
            self._citations = self._citations or Citations(self._send, self._sources)
            content = self._citations.tagged(self.said)
        self._sink.append_content(content)

    def create_stage(self, name: str | None = None) -> StageSink:
        if not self._created and self._at_first is not None:
            self._started = asyncio.ensure_future(self._at_first())
        self._created += 1
        if self._created <= SHOWN:
            return self._sink.create_stage(name)
        if self._group is None:
            self._group = StageProcessor.open_stage(self._sink, TITLE)
        step = _Step(self._group.create_stage(name))
        self._steps.append(step)
        return step

    def close(self, *, failed: bool) -> None:
        """Close the group, marked failed where a stage in it failed: users rarely expand it."""
        if self._group is None:
            return
        if count := sum(step.failed for step in self._steps):
            self._group.append_name(f" ({count} failed)")
        StageProcessor.close_stage_safely(self._group, failed=failed or count > 0)


class _Step(ForwardingStage):
    """A stage that remembers whether it failed."""

    failed = False

    def close(self, status: Any = StageStatus.COMPLETED) -> None:
        self.failed = status == StageStatus.FAILED
        super().close(status)
