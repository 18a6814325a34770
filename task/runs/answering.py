"""Answer one run: its request as a turn written as events, then the calls it ends with handed out or asked about."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import count

from task.approvals.approvals import RunApprovals
from task.approvals.questions import question, said_in
from task.conversation.messages import FunctionCall, Message, ToolCall, interrupted
from task.core_client.files import file_id_of
from task.errors import ProviderError
from task.llm.base import Usage
from task.loop import CONTENT_FILTER, EMPTY_ANSWER, LoopObserver, RunOutcome
from task.output.sinks import StageSink
from task.product import Profile, Services
from task.runs import events
from task.runs.request import RunRequest, handed_out_id, session_title
from task.store.records import Run, iso
from task.tools.declare import ClientTool
from task.turn import TurnRequest, remembering, take_turn

OTHER_ARGUMENTS = "[The user approved this call with other arguments: {arguments}]"


async def answer(
    services: Services, profile: Profile, request: RunRequest, run: Run, choice: RunChoice, observer: LoopObserver
) -> tuple[RunOutcome, str | None]:
    """Answer into `choice`: the outcome, also of a failure, and the session in which the run can be continued."""
    outcome, session_id = RunOutcome("cancelled", (), Usage()), run.session_id
    try:
        owner, options, store = request.caller.owner, request.options, await services.store.get()
        edits = {  # arguments other than the model's that were approved, by calls' ids
            item.call_id: json.dumps(dict(item.answer.arguments), ensure_ascii=False)
            for item in request.answered
            if item.answer is not None and item.answer.allowed and item.answer.arguments is not None
        }
        approvals = RunApprovals(store, profile.rules, owner, session_id, run.run_id, request.answered)
        turn = TurnRequest(
            (*_edited(request.history, edits), *request.new),
            request.caller.of_tools(session_id or run.run_id, request.files),
            await approvals.state(),
            own_tools=tuple(map(ClientTool, options.tools)),
            answers=[item.answer for item in request.answered],
            door=options.door,
            skills=options.skills,
        )
        asked = replace(options.model_options, tool_choice=None if options.choice == "auto" else options.choice)
        chosen = replace(
            profile,
            model=options.model,
            prompt=profile.prompt if options.prompt is None else options.prompt,
            persona=options.persona,
            mode=options.mode,
            options=profile.options_for(asked),
            rules=replace(profile.rules, refresh=approvals.refresh),
        )
        if services.memory is not None:
            chosen, turn = await remembering(services.memory, chosen, turn, observer)
        outcome = await take_turn(services, chosen, turn, choice, observer)
        outcome = replace(outcome, added=_noted(outcome.added, edits)) if edits else outcome
        if outcome.status == "suspended":
            outcome = _named_after(run, outcome, turn.own_names)
            asking = asyncio.ensure_future(_suspend(outcome, approvals, request, choice, turn.own_names))
            with suppress(asyncio.CancelledError):  # a stop comes too late: the user may have read the question
                await asyncio.shield(asking)
            session_id = await asking
        if outcome.status not in ("cancelled", "failed"):
            await approvals.save(outcome.grants)
    except asyncio.CancelledError:
        outcome = RunOutcome("cancelled", interrupted(outcome.added), Usage())
    except Exception as error:
        outcome = RunOutcome("failed", interrupted(outcome.added), Usage(), error=error)
    choice.flush()
    return outcome, session_id


def finish_reason(outcome: RunOutcome, *, calls: bool) -> events.FinishReason | None:
    """OpenAI's reason for the end; None where the run failed. A filtered or empty answer has not failed."""
    if outcome.error is not None:
        # A provider that refuses the question itself does so with a status.
        error = outcome.error
        ended = error.code if isinstance(error, ProviderError) and error.status_code is None else None
        return "content_filter" if ended == CONTENT_FILTER else "stop" if ended == EMPTY_ANSWER else None
    if calls:
        return "tool_calls"
    cut = outcome.cut or outcome.status == "cancelled"  # OpenAI has no value for a stopped answer
    return "length" if cut else "stop"


def _edited(messages: Sequence[Message], edits: Mapping[str, str]) -> Sequence[Message]:
    # The conversation with the calls as they were approved.
    def edited(call: ToolCall) -> ToolCall:
        arguments = edits.get(call.id)
        return call if arguments is None else replace(call, function=FunctionCall(call.name, arguments))

    return [replace(item, tool_calls=tuple(map(edited, item.tool_calls))) for item in messages] if edits else messages


def _noted(added: Sequence[Message], edits: Mapping[str, str]) -> tuple[Message, ...]:
    # Results of changed calls note the new arguments, as the stored call has the old ones.
    notes = {call_id: OTHER_ARGUMENTS.format(arguments=arguments) for call_id, arguments in edits.items()}
    return tuple(
        replace(message, content=f"{notes[message.tool_call_id]}\n\n{message.text()}")
        if message.tool_call_id in notes
        else message
        for message in added
    )


async def _suspend(
    outcome: RunOutcome, approvals: RunApprovals, request: RunRequest, choice: RunChoice, own: set[str]
) -> str | None:
    """Hand out the caller's calls, or else ask the user about the others; the session in which that is answered.

    Where there are both, the caller's come first: a program sends its results at once, where the user's decision
    would be expected. The other calls stay open, and the run that the results start asks about them.
    """
    session_id, owner, sessions = approvals.session_id, approvals.owner, approvals.store.sessions
    theirs = [item.call for item in outcome.pending if item.call.name in own]
    if theirs:
        choice.emit(events.RunCalls([call.as_dict() for call in theirs]))
        return session_id
    if session_id is None:
        asked = request.conversation
        session = await sessions.start(owner, session_title(asked))
        await sessions.append(owner, session.session_id, [*asked, *outcome.added], session.version)
        session_id = session.session_id
    questions = await approvals.ask(outcome.pending, session_id)
    codes, seconds = [item.code for item in questions], approvals.rules.open_seconds
    text = question(outcome.pending, codes, seconds, said_in(outcome.added))
    described: list[dict[str, object]] = []
    for item in questions:
        data = {name: value for name, value in asdict(item).items() if name != "owner"}
        described.append({**data, "asked_at": iso(item.asked_at), "expires_at": iso(item.expires_at)})
    choice.emit(events.RunAsks(described, text))
    return session_id


def _named_after(run: Run, outcome: RunOutcome, own: set[str]) -> RunOutcome:
    """The outcome with the caller's calls under ids that name the run: their results lead back to it."""
    theirs = [item.call.id for item in outcome.pending if item.call.name in own]
    names = {call_id: handed_out_id(run.run_id, number) for number, call_id in enumerate(theirs)}

    def renamed(call: ToolCall) -> ToolCall:
        return replace(call, id=names.get(call.id, call.id))

    added = list(outcome.added)
    places = [place for place, message in enumerate(added) if message.tool_calls]
    for last in places[-1:]:
        added[last] = replace(added[last], tool_calls=tuple(map(renamed, added[last].tool_calls)))
    pending = tuple(replace(item, call=renamed(item.call)) for item in outcome.pending)
    return replace(outcome, added=tuple(added), pending=pending)


class RunChoice:
    """Where a run writes its answer. Text of one step of the event loop becomes one event."""

    def __init__(self, emit: events.Emit) -> None:
        self._emit_now = emit
        self._waiting: list[str] = []
        self._numbers = count(1)

    def append_content(self, content: str) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.flush)
        self._waiting.append(content)

    def append_reasoning_content(self, content: str) -> None:
        self.emit(events.RunText(content, "reasoning"))

    def add_attachment(self, **attachment: str | None) -> None:
        self.attach(None, attachment)

    def create_stage(self, name: str | None = None, parent: int | None = None) -> StageSink:
        return _Stage(self, name or "", parent, next(self._numbers))

    def set_state(self, state: dict[str, object]) -> None:
        """Nothing: the store keeps the state of a run."""

    def emit(self, event: events.RunEvent) -> None:
        """Emit another event, after the text before it."""
        self.flush()
        self._emit_now(event)

    def attach(self, stage: int | None, attachment: dict[str, str | None]) -> None:
        fields = {name: value for name, value in attachment.items() if value is not None}
        if fields.get("url", "").startswith("files/"):
            fields["file_id"] = file_id_of(fields["url"])
        self.emit(events.Attached(stage, fields))

    def flush(self) -> None:
        if self._waiting:
            text = "".join(self._waiting)
            self._waiting.clear()
            self._emit_now(events.RunText(text))


class _Stage:
    def __init__(self, choice: RunChoice, name: str, parent: int | None, number: int) -> None:
        self._choice, self._name, self._parent, self._number = choice, name, parent, number

    def open(self) -> None:
        self._choice.emit(events.StageOpened(self._number, self._parent, self._name))

    def close(self, status: object = "completed") -> None:
        # The status may be another enumeration's with the same values: the DIAL SDK's or our own.
        self._choice.emit(events.StageClosed(self._number, self._name, "failed" if status == "failed" else "completed"))

    def append_name(self, name: str) -> None:
        self._name += name

    def append_content(self, content: str) -> None:
        self._choice.emit(events.StageText(self._number, content))

    def add_attachment(self, **attachment: str | None) -> None:
        self._choice.attach(self._number, attachment)

    def create_stage(self, name: str | None = None) -> StageSink:
        return self._choice.create_stage(name, self._number)
