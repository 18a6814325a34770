"""Which run a request becomes, at every door: what came × what is open, as one table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from task.approvals.approvals import codes_in, read_reply, words_of
from task.approvals.questions import without_questions
from task.conversation.inner import INNER, asked_for, outer_id
from task.conversation.inputs import Answer
from task.conversation.merging import merged
from task.conversation.messages import (
    INTERRUPTED,
    NOT_APPROVED,
    PERHAPS_RUN,
    FunctionCall,
    Message,
    Role,
    ToolCall,
    tool_message,
    unanswered,
)
from task.errors import ArgumentsError, Conflict, InvalidRequest, NotFound
from task.permissions.gate import digest
from task.product import Profile, Services
from task.product.profile import FOLDER, offered
from task.runs.request import RunCaller, RunOptions, RunRequest, RunState, parted, restored, run_of_call, session_title
from task.store.records import Approval, Origin, Run, Session, packed
from task.tools.declare import NO_RESULT
from task.tools.toolbox import named

if TYPE_CHECKING:
    from task.store.store import Store

ANSWERED = ("running", "finished", "limited", "suspended")  # runs whose answer can be given again, now or when they end
CLOSED = "This question is closed: another message came after it, or it expired. Nothing has run."
OTHERWISE = "This question was answered differently before, and the first answer counts. Ask for what is wanted now."
CONTINUES = "Your answer counts. The console or editor that asked continues with the tools of its folder."

# What came: a code, a bare word, a card; any of them once it is known which question it answers; results of the
# caller's tools; any other message. What is open. And the run that this becomes:
# new: a run with these messages, which close what is open. resumed: the suspended run goes on with the answers.
# repeated: the answer of the run that came of it before. retried: a run in place of one that failed at once.
# wait: no run yet, or not here. Any other text is the refusal, and nothing has run.
TABLE: Mapping[tuple[str, str], str] = {
    ("code", "an unknown code"): "There is no open question with the code {code}. Nothing has run.",
    ("code", "several questions"): "These codes belong to different questions. Answer one at a time; nothing has run.",
    ("word", "no question"): "new",
    ("word", "several questions"): "Several questions are open. Say which one you mean, for example: approve {code}",
    ("answer", "an expired question"): CLOSED,
    ("answer", "a question answered otherwise"): OTHERWISE,
    ("answer", "a question"): "resumed",
    ("answer", "a question of another door"): CONTINUES,
    ("answer", "a question followed by a message"): CLOSED,
    ("answer", "an answered question"): "repeated",
    ("answer", "an answered question, its run failed at once"): "retried",
    ("card", "other questions of the run"): "wait",
    ("card", "a question"): "resumed",
    ("card", "a question of another door"): "wait",
    ("card", "a question followed by a message"): CLOSED,
    ("card", "an answered question"): "repeated",
    ("results", "no run of ours"): "new",
    ("results", "their calls"): "new",
    ("results", "results that came before"): "repeated",
    ("results", "results that came before, their run failed"): "retried",
    ("message", "nothing"): "new",
    ("message", "calls or questions"): "new",
}


class Preparing:
    """Turns what a caller sends into a run, and takes the answers of cards."""

    def __init__(self, services: Services, profile: Profile) -> None:
        self._services, self._profile = services, profile

    async def prepare(
        self, caller: RunCaller, sent: Sequence[Message], options: RunOptions, session_id: str | None
    ) -> RunRequest:
        """The run that the messages ask for, in the session where one is named; they may repeat what it holds.

        Raises:
            NotFound: the caller has no such session, or there is no question with that code.
            Conflict: the session has ended; or the answer is about a question that is closed, was answered
                otherwise, or names none of several that are open.
        """
        incoming = _Preparation(self._profile, await self._services.store.get(), caller, options)
        session = await incoming.open_session(session_id) if session_id is not None else None
        if answered := await incoming.by_code(sent[-1]):
            return answered
        return await (incoming.alone(sent) if session is None else incoming.in_session(session, sent))

    async def in_session(
        self,
        caller: RunCaller,
        sent: Sequence[Message],
        options: RunOptions,
        session_id: str | None = None,
        origin: Origin = "api",
    ) -> RunRequest:
        """The run in the session; where none is named, in a new one that is started at `origin`, or in that of the
        question which is answered.

        Raises: as `prepare`.
        """
        request = await self.prepare(caller, sent, options, session_id)
        if session_id is not None or request.resumes is not None or request.again is not None:
            return request
        store = await self._services.store.get()
        session = await store.sessions.start(caller.owner, session_title(sent), origin)
        return replace(request, new=request.conversation, history=(), session=session)

    async def after_run(
        self, caller: RunCaller, run: RunState, session: Session, new: Sequence[Message], options: RunOptions
    ) -> RunRequest:
        """The run that continues the conversation where that one ended; it branches off where others have followed.

        Raises: as `prepare`.
        """
        store = await self._services.store.get()
        incoming = _Preparation(self._profile, store, caller, options)
        answered = await incoming.by_code(new[-1])
        if answered is None and len(new) == 1 and codes_in(words_of(new[-1])) is not None:
            answered = await incoming.by_word(run.run.run_id, new[-1])
        if answered is not None:
            return answered
        held = {message.tool_call_id: message.text() for message in session.messages[run.end or session.length :]}
        if all(message.role is Role.TOOL and held.get(message.tool_call_id) == message.text() for message in new):
            runs = (await store.runs.list(caller.owner, session.session_id)).items
            later = [item for item in runs if item.started_at > run.run.started_at]
            if later and later[-1].status in ANSWERED:  # the row "results that came before"
                return RunRequest.repeat(caller, later[-1].run_id)
        if run.end is not None and session.length != run.end:
            session = await store.sessions.branch(caller.owner, session.session_id, run.end)
        return await incoming.in_order(session, new)

    async def answer(self, caller: RunCaller, approval_id: str, answer: Answer) -> Approval:
        """The question with its answer from a card; the same answer again changes nothing.

        Raises:
            NotFound: the caller was not asked this.
            Conflict: it was answered otherwise, or it has expired.
            InvalidRequest: the changed arguments do not fit the tool.
        """
        approvals = (await self._services.store.get()).approvals
        asked = await approvals.get(caller.owner, approval_id)
        arguments, asks = answer.arguments, any(asked_for(asked.call_id))
        answer = answer if asks else replace(answer, arguments=None)
        if arguments is not None and not asks and dict(arguments) != dict(asked.arguments):
            tool = named((await offered(self._services, self._profile, caller.of_tools()))[0]).get(asked.tool)
            if tool is None or INNER in asked.call_id:  # a sub-agent has its arguments already
                raise Conflict(f"the arguments of {asked.tool!r} cannot be changed; approve or deny the call as it is")
            try:
                arguments = tool.parse(ToolCall(asked.call_id, FunctionCall(asked.tool, packed(dict(arguments)))))
            except ArgumentsError as error:
                raise InvalidRequest(str(error)) from error
            where = tool.workspace_access(arguments), tool.offered_by
            exact = digest(asked.tool, arguments, self._profile.rules.policy, *where)
            answer = replace(answer, arguments=arguments, grant=exact)
        try:
            return await approvals.answer(caller.owner, approval_id, answer)
        except Conflict:
            now = await approvals.get(caller.owner, approval_id)
            if now.answer == answer:  # it came before, perhaps at another door
                return now
            raise

    async def resumed(self, caller: RunCaller, run_id: str) -> RunRequest | None:
        """The run that continues a suspended one after the answers of cards; None while one of its questions is open,
        or where it is not continued here.

        Raises:
            Conflict: the conversation no longer waits for the answers.
        """
        store = await self._services.store.get()
        asked = await store.approvals.list(caller.owner, run_id=run_id, waiting=False)
        if not asked:
            return None
        options = await RunOptions.of_run(store, caller.owner, run_id)
        return await _Preparation(self._profile, store, caller, options).resumed("card", run_id, asked)


@dataclass(frozen=True, slots=True)
class _Preparation:
    """One request on its way to a run; `options` are those of a run that it starts."""

    profile: Profile
    store: Store
    caller: RunCaller
    options: RunOptions

    async def alone(self, sent: Sequence[Message]) -> RunRequest:
        """Messages without a session: they are all that is known of the conversation."""
        owner, run, run_id = self.caller.owner, None, run_of_call(sent[-1].tool_call_id or "")
        with suppress(NotFound):
            run = await self.store.runs.get(owner, run_id) if run_id is not None else None
        if run is not None and run.session_id is not None:
            return await self.in_order(await self.open_session(run.session_id), parted(sent)[1])
        history, new = await restored(self.store, owner, sent)
        return RunRequest(self.caller, self.options, new, history)

    async def in_session(self, session: Session, sent: Sequence[Message]) -> RunRequest:
        """Messages for a session; they may repeat what it holds."""
        known = without_questions(sent)
        if codes_in(words_of(sent[-1])) is not None:
            fit = merged(session.messages, known[:-1])
            # If the history differs, a bare "yes" does not answer our question.
            fits = len(sent) == 1 or not (fit.new or fit.branched)
            last = await last_run(self.store, self.caller.owner, session.session_id) if fits else None
            if last is not None and (answered := await self.by_word(last.run_id, sent[-1])):
                return answered
        return await self.in_order(*await self.store.sessions.resume(session, known))

    async def resumed(self, came: str, run_id: str, asked: Sequence[Approval]) -> RunRequest | None:
        """The run that continues the one that has asked this, or that has continued it before."""
        owner, runs = self.caller.owner, self.store.runs
        if any(item.status == "waiting" for item in asked):
            return self._request((came, "other questions of the run"))
        await runs.ended(owner, run_id)  # its calls are in the session from then on
        session = await self.store.sessions.get(owner, asked[0].session_id or "")
        last = await last_run(self.store, owner, session.session_id)
        later = await runs.resumed_by(owner, run_id)  # read after `last`, which the same answer may just have started
        if later is None:
            asking = await RunOptions.of_run(self.store, owner, run_id)
            if not self.profile.continues(asking.door, asking.metadata.get(FOLDER, "")):
                return self._request((came, "a question of another door"))
            calls = {call.id for call in unanswered(session.messages)}  # ids of calls recur
            about = {outer_id(item.call_id) for item in asked}
            waits = calls and calls <= about and (last is None or last.run_id == run_id)
            row = (came, "a question" if waits else "a question followed by a message")
            return self._request(row, session, run_id, asked)
        while came != "card" and later.status not in ANSWERED and (after := await runs.resumed_by(owner, later.run_id)):
            later = after
        # A run that failed before it wrote anything is continued where it stopped: what was approved has run.
        at_once = session.messages[-1].role is Role.TOOL and not unanswered(session.messages)
        failed = came != "card" and later.status not in ANSWERED and at_once
        found = "an answered question, its run failed at once" if failed else "an answered question"
        return self._request((came, found), session, later.run_id)

    async def open_session(self, session_id: str) -> Session:
        session = await self.store.sessions.get(self.caller.owner, session_id, traces=False)
        if session.ended_at is not None:
            raise Conflict(f"the session {session_id} has ended; start a new one")
        return session

    async def by_code(self, said: Message) -> RunRequest | None:
        """The run that the user's decision continues; None where the words name no code."""
        codes, runs = codes_in(words_of(said)), set[str]()
        for code in codes or ():
            found = await self.store.approvals.coded(self.caller.owner, code)
            if found is None:
                raise NotFound(TABLE["code", "an unknown code"].format(code=code))
            runs.add(found.run_id or "")
        if len(runs) > 1:
            raise Conflict(TABLE["code", "several questions"])
        return await self._answered(runs.pop(), said, codes) if codes else None

    async def by_word(self, run_id: str, said: Message) -> RunRequest | None:
        """The run that a bare word about this one continues; None where it has no open question."""
        asked = await self.store.approvals.list(self.caller.owner, run_id=run_id, waiting=False)
        waiting = [item.code for item in asked if item.status == "waiting"]
        found = waiting or [item.code for item in asked if all(other.answer for other in asked)]
        if len(found) > 1:
            raise Conflict(TABLE["word", "several questions"].format(code=found[0]))
        return await self._answered(run_id, said, found) if found else None

    async def _answered(self, run_id: str, said: Message, named: Collection[str]) -> RunRequest:
        """Keep the answers, of which those to the questions that the words name have to count."""
        owner, approvals = self.caller.owner, self.store.approvals
        await self.store.runs.ended(owner, run_id)  # it puts its questions one after the other
        asked = await approvals.list(owner, run_id=run_id, waiting=False)
        answers = read_reply(words_of(said), None, [item.code for item in asked]) or ()
        for item, answer in zip(asked, answers, strict=True):
            try:
                await approvals.answer(owner, item.approval_id, answer)
            except Conflict:
                kept = (await approvals.get(owner, item.approval_id)).answer
                if item.code in named and (kept is None or kept.allowed != answer.allowed):
                    found = "an expired question" if kept is None else "a question answered otherwise"
                    raise Conflict(TABLE["answer", found]) from None
        request = await self.resumed("answer", run_id, await approvals.list(owner, run_id=run_id, waiting=False))
        assert request is not None  # every question of the run has its answer now
        return request

    async def in_order(self, session: Session, new: Sequence[Message]) -> RunRequest:
        """Messages or results that follow what the session holds."""
        owner, known, calls = self.caller.owner, session.messages, unanswered(session.messages)
        plain = not calls and any(message.role is not Role.TOOL for message in new)
        last = await last_run(self.store, owner, session.session_id) if not plain else None
        since = max((n for n, message in enumerate(known) if message.role is Role.USER), default=-1)
        held = {message.tool_call_id for message in known[since + 1 :]} - {call.id for call in calls}
        if any(message.role is not Role.TOOL for message in new):
            row = ("message", "calls or questions" if calls else "nothing")
        elif any(message.tool_call_id not in held for message in new):
            row = ("results", "their calls")
        elif last is not None and last.status in ANSWERED:
            return RunRequest.repeat(self.caller, last.run_id)  # the row "results that came before"
        else:
            row = ("results", "results that came before, their run failed")
        new = () if TABLE[row] == "retried" else new
        closed = await self._closed(calls, new, last)
        if not session.title and not known and new:
            await self.store.sessions.rename(owner, session.session_id, session_title(new))
        return RunRequest(self.caller, self.options, (*closed, *new), known, session)

    async def _closed(self, calls: Sequence[ToolCall], new: Sequence[Message], last: Run | None) -> list[Message]:
        """Results for the calls that will not run, whose questions are withdrawn. Where only results of the caller's
        tools come, our own calls stay open: the user is asked about them next."""
        owner, approvals = self.caller.owner, self.store.approvals
        theirs = {tool["name"] for tool in self.options.tools}
        given = {message.tool_call_id for message in new if message.role is Role.TOOL}
        closed, results = list[Message](), all(message.role is Role.TOOL for message in new)
        # Only the run that made the calls has asked about them: ids of calls recur, and earlier answers do not count.
        used = last is not None and last.resumes is not None and last.status != "suspended"
        run_id = last and (last.resumes if used else last.run_id)
        found = await approvals.list(owner, run_id=run_id, waiting=False) if calls and run_id else ()
        for call in calls:
            if call.id in given or (results and call.name not in theirs):
                continue
            asked = [item for item in found if outer_id(item.call_id) == call.id]
            if not asked:
                reason = NO_RESULT if call.name in theirs else INTERRUPTED
            elif any(question.status == "allowed" for question in asked):
                reason = PERHAPS_RUN if used else INTERRUPTED
            else:
                reason = NOT_APPROVED
            closed.append(tool_message(call, reason, failed=True))
            for item in (item for item in asked if item.status == "waiting"):
                await approvals.answer(owner, item.approval_id, Answer(False, "another message came"))
        return closed

    def _request(
        self, row: tuple[str, str], session: Session | None = None, run_id: str = "", answered: Sequence[Approval] = ()
    ) -> RunRequest | None:
        """The run of a row of the table; `run_id` is the one that is resumed, repeated or retried."""
        match TABLE[row]:
            case "wait":
                return None
            case "repeated":
                return RunRequest.repeat(self.caller, run_id)
            case "resumed" | "retried" if session is not None:
                known = session.messages
                return RunRequest(self.caller, self.options, (), known, session, tuple(answered), run_id or None)
            case refusal:
                raise Conflict(refusal)


async def last_run(store: Store, owner: str, session_id: str) -> Run | None:
    return next(iter((await store.runs.list(owner, session_id, limit=1)).items), None)
