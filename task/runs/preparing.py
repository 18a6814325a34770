"""Turn what a caller sends into a run: a new one, one that continues with results, or one that a decision resumes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from task.approvals.questions import without_question
from task.conversation.history import INTERRUPTED, NOT_APPROVED, PERHAPS_RUN, repaired, unanswered
from task.conversation.messages import Message, Role, ToolCall, tool_message
from task.conversation.replies import codes_in
from task.errors import Conflict, InvalidRequest, NotFound
from task.product import Product
from task.runs.deciding import ANSWERED, Deciding, files_of, is_bare, last_run, options_of, words_of
from task.runs.request import RunCaller, RunOptions, RunRequest, run_of_call, session_title
from task.runs.state import RunState
from task.store.merge import merged
from task.store.records import Answer, Approval, Origin, Run, Session
from task.tools.client_tools import NO_RESULT

if TYPE_CHECKING:
    from task.store.store import Store


@dataclass(frozen=True, slots=True)
class Preparing:
    """Turns requests into runs."""

    product: Product

    async def prepare(
        self, caller: RunCaller, sent: Sequence[Message], options: RunOptions, session_id: str | None
    ) -> RunRequest:
        """The run that the messages ask for, in the session where one is named.

        The messages may repeat what the session holds.

        Raises:
            NotFound: the caller has no such session, or there is no question of that code.
            Conflict: the session has ended; or the decision is about a question that is closed, was answered
                otherwise, or names none of several that are open.
        """
        store = await self.product.store.get()
        deciding = Deciding(self.product, store, caller, options)
        if session_id is None:
            decided = await deciding.by_code(sent, alone=True)
            return decided or await self._alone(store, caller, sent, options)
        session = await _open_session(store, caller, session_id)
        decided = await _decided(deciding, session, sent)
        if decided is not None:
            return decided
        found = await store.sessions.resume(session, _without_questions(sent))
        return await self._after(store, caller, found.session, found.new, options)

    async def after_run(
        self, caller: RunCaller, run: RunState, session: Session, new: Sequence[Message], options: RunOptions
    ) -> RunRequest:
        """The run that continues the conversation where that one ended; it branches off where others have followed.

        Raises: as `prepare`.
        """
        store = await self.product.store.get()
        deciding = Deciding(self.product, store, caller, options)
        decided = await deciding.by_code(new)
        if decided is None and len(new) == 1:
            decided = await deciding.after_run(run.run.run_id, new[0])
        decided = decided or await _given_before(store, caller, session, run, new, options)
        if decided is not None:
            return decided
        if run.end is not None and session.length != run.end:
            session = await store.sessions.branch(caller.owner, session.session_id, run.end)
        if session.ended_at is not None:
            raise Conflict(f"the session {session.session_id} has ended; start a new one")
        return await self._after(store, caller, session, new, options)

    async def in_session(
        self,
        caller: RunCaller,
        sent: Sequence[Message],
        options: RunOptions,
        session_id: str | None = None,
        origin: Origin = "api",
    ) -> RunRequest:
        """The run in the session; where none is named, in a new one, or in that of the question which is answered.

        `origin` is where a new session is started.

        Raises: as `prepare`.
        """
        if session_id is not None:
            return await self.prepare(caller, sent, options, session_id)
        request = await self.prepare(caller, sent, options, None)
        if request.resumes is not None or request.again is not None:
            return request
        store = await self.product.store.get()
        session = await store.sessions.start(caller.owner, session_title(sent), origin)
        return replace(request, new=(*request.history, *request.new), history=(), session=session)

    async def resumed(self, caller: RunCaller, run_id: str) -> RunRequest | None:
        """The run that continues a suspended one; None while one of its questions is open, or where it is not continued
        here.

        Raises:
            Conflict: the conversation no longer waits for the answers.
        """
        store = await self.product.store.get()
        asked = await store.approvals.list(caller.owner, run_id=run_id, waiting=False)
        if not asked or any(item.status == "waiting" for item in asked):
            return None
        if later := await store.runs.resumed_by(caller.owner, run_id):
            return RunRequest.repeat(caller, later.run_id)
        options = await options_of(store, caller.owner, run_id)
        if not self.product.continues(options.door):
            return None
        return await Deciding(self.product, store, caller, options).resuming(run_id, asked)

    async def _alone(self, store: Store, caller: RunCaller, sent: Sequence[Message], options: RunOptions) -> RunRequest:
        run = await _run_of_results(store, caller.owner, sent)
        if run is not None and run.session_id is not None:
            session = await _open_session(store, caller, run.session_id)
            return await self._after(store, caller, session, _parted(sent)[1], options)
        history, new = _parted(_repaired(await _with_own_calls(store, caller.owner, sent), sent))
        return RunRequest(caller, options, new, history, files=files_of([*history, *new]))

    async def _after(
        self, store: Store, caller: RunCaller, session: Session, new: Sequence[Message], options: RunOptions
    ) -> RunRequest:
        last = await last_run(store, caller.owner, session.session_id)
        if _taken(session.messages, new):
            if last is not None and last.status in ANSWERED:
                return RunRequest.repeat(caller, last.run_id)
            new = ()  # the run that took them has failed
        waiting = await _waiting(store, caller, session, last)
        # Results of the caller's calls let what was decided run; after another message it does not run.
        answered = waiting.answered if all(message.role is Role.TOOL for message in new) else ()
        given_up = _given_up(session.messages, new, waiting, answered, {tool["name"] for tool in options.tools})
        for message in given_up:
            await _withdraw(store, caller, waiting, message)
        if not session.title and not session.messages and new:
            await store.sessions.rename(caller.owner, session.session_id, session_title(new))
        history = session.messages
        return RunRequest(
            caller, options, (*given_up, *new), history, session, files_of([*history, *new]), answered,
            resumes=last.run_id if last is not None and answered else None,
        )  # fmt: skip


async def _open_session(store: Store, caller: RunCaller, session_id: str) -> Session:
    session = await store.sessions.get(caller.owner, session_id)
    if session.ended_at is not None:
        raise Conflict(f"the session {session_id} has ended; start a new one")
    return session


async def _decided(deciding: Deciding, session: Session, sent: Sequence[Message]) -> RunRequest | None:
    if decided := await deciding.by_code(sent):
        return decided
    # After another history, a bare word is about something else.
    fits = len(sent) == 1 or (is_bare(sent[-1]) and _is_all(session, _without_questions(sent)[:-1]))
    return await deciding.in_session(session.session_id, sent[-1]) if fits else None


def _is_all(session: Session, sent: Sequence[Message]) -> bool:
    fit = merged(session.messages, sent)
    return not (fit.new or fit.branched)


def _without_questions(sent: Sequence[Message]) -> list[Message]:
    """The conversation as the session holds it: without questions and decisions, the text around them joined."""
    found: list[Message] = []
    asked, before = False, ""
    for message in sent[:-1]:
        if message.role is not Role.ASSISTANT:
            if not (asked and codes_in(words_of(message)) is not None):
                found += [_before(before)] if before else []
                found.append(message)
                before = ""
            asked = False
            continue
        text = message.text()
        own = without_question(text)
        asked, before = own != text, f"{before} {own}".strip()
        if not asked:
            found.append(replace(message, content=before or message.content))
            before = ""
    return [*found, *([_before(before)] if before else []), *sent[-1:]]


def _before(text: str) -> Message:
    return Message(Role.ASSISTANT, text, unsourced=True)


async def _with_own_calls(store: Store, owner: str, sent: Sequence[Message]) -> list[Message]:
    """The conversation of a caller who was sent the calls of its own tools alone, with ours of the same runs."""
    named = [_run_of(message) for message in sent]
    kept = await store.runs.added(owner, list(dict.fromkeys(filter(None, named))))
    found: list[Message] = []
    for message, run_id in zip(sent, named, strict=True):
        added = kept.get(run_id or "")
        if added:
            while found and found[-1].role is Role.ASSISTANT and not found[-1].tool_calls:
                found.pop()  # some callers send the text before the calls as a message of its own
        found.extend(added or (message,))
    return found


def _run_of(message: Message) -> str | None:
    return next(filter(None, (run_of_call(call.id) for call in message.tool_calls)), None)


async def _run_of_results(store: Store, owner: str, sent: Sequence[Message]) -> Run | None:
    """The run that has handed out the call whose result comes last."""
    run_id = run_of_call(sent[-1].tool_call_id or "")
    with suppress(NotFound):
        return await store.runs.get(owner, run_id) if run_id is not None else None
    return None


def _taken(history: Sequence[Message], new: Sequence[Message]) -> bool:
    """Whether the session has all these results already, because their client retries."""
    since = max((place for place, message in enumerate(history) if message.role is Role.USER), default=-1)
    known = {message.tool_call_id for message in history[since + 1 :]} - {call.id for call in unanswered(history)}
    return all(message.role is Role.TOOL and message.tool_call_id in known for message in new)


async def _given_before(
    store: Store, caller: RunCaller, session: Session, run: RunState, new: Sequence[Message], options: RunOptions
) -> RunRequest | None:
    """The run that continued from the end of `run` with these same results."""
    if not all(message.role is Role.TOOL for message in new):
        return None
    held = {message.tool_call_id: message.text() for message in session.messages[run.end or session.length :]}
    if not all(held.get(message.tool_call_id) == message.text() for message in new):
        return None
    runs = (await store.runs.list(caller.owner, session.session_id)).items
    later = [item for item in runs if item.started_at > run.run.started_at]
    return RunRequest.repeat(caller, later[-1].run_id) if later and later[-1].status in ANSWERED else None


@dataclass(frozen=True, slots=True)
class _Waiting:
    """What a person was asked about the calls that have no result. `used`: a run has continued with the answers."""

    asked: tuple[Approval, ...] = ()
    used: bool = False

    @property
    def answered(self) -> tuple[Approval, ...]:
        return () if self.used else tuple(item for item in self.asked if item.status != "waiting")

    def reason(self, call: ToolCall, theirs: Collection[str]) -> str:
        """Why the call has no result."""
        question = next((item for item in self.asked if item.call_id == call.id), None)
        if question is None:
            return NO_RESULT if call.name in theirs else INTERRUPTED
        if question.status != "allowed":
            return NOT_APPROVED
        return PERHAPS_RUN if self.used else INTERRUPTED


async def _waiting(store: Store, caller: RunCaller, session: Session, last: Run | None) -> _Waiting:
    calls = {call.id for call in unanswered(session.messages)}
    if not calls or last is None:
        return _Waiting()
    # Only the run that made the calls has asked about them: ids of calls recur, and earlier answers do not count.
    used = last.resumes is not None and last.status != "suspended"
    asked = await store.approvals.list(caller.owner, run_id=last.resumes if used else last.run_id, waiting=False)
    return _Waiting(tuple(item for item in asked if item.call_id in calls), used)


def _given_up(
    history: Sequence[Message],
    new: Sequence[Message],
    waiting: _Waiting,
    answered: Sequence[Approval],
    theirs: Collection[str],
) -> list[Message]:
    """Results for the calls that will not run. Where only results of the caller's tools come, our own calls stay
    open: a person is asked about them next."""
    runs_now = {item.call_id for item in answered}
    results = {message.tool_call_id for message in new if message.role is Role.TOOL}
    nothing_else = all(message.role is Role.TOOL for message in new)
    return [
        tool_message(call, waiting.reason(call, theirs), failed=True)
        for call in unanswered(history)
        if call.id not in runs_now | results and not (nothing_else and call.name not in theirs)
    ]


async def _withdraw(store: Store, caller: RunCaller, waiting: _Waiting, message: Message) -> None:
    for item in waiting.asked:
        if item.call_id == message.tool_call_id and item.status == "waiting":
            await store.approvals.answer(caller.owner, item.approval_id, Answer(False, "another message came"))


def _parted(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    start = len(messages)
    while start and messages[start - 1].role is Role.TOOL:
        start -= 1
    start -= start == len(messages) and start > 0
    if not messages or messages[-1].role is Role.ASSISTANT:
        raise InvalidRequest("The last message is the result of a call that no message before it makes.")
    return tuple(messages[:start]), tuple(messages[start:])


def _repaired(messages: Sequence[Message], sent: Sequence[Message]) -> list[Message]:
    # Calls that are not the caller's stay open when its results have come.
    theirs = next((message.tool_calls for message in reversed(sent) if message.tool_calls), ())
    ours = {call.id for call in unanswered(messages)} - {call.id for call in theirs}
    if not ours:
        return repaired(messages)
    turn = next(place for place in range(len(messages) - 1, -1, -1) if messages[place].tool_calls)
    return [*repaired(messages[:turn]), *repaired(messages[turn:], ours)]
