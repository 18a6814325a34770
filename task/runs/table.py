"""Which run a request becomes, at every door: what came × what is open, as one table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from task.approvals.questions import without_questions
from task.conversation.inputs import Answer, codes_in, read_reply, words_of
from task.conversation.merging import merged
from task.conversation.messages import (
    INTERRUPTED,
    NOT_APPROVED,
    PERHAPS_RUN,
    Attachment,
    FunctionCall,
    Message,
    Role,
    ToolCall,
    repaired,
    tool_message,
    unanswered,
)
from task.errors import ArgumentsError, Conflict, InvalidRequest, NotFound
from task.permissions.gate import digest
from task.product import Profile, Services
from task.runs.events import RunState
from task.runs.request import RunCaller, RunOptions, RunRequest, run_of_call, session_title
from task.store.records import Approval, Origin, Run, Session, packed
from task.tools.declare import NO_RESULT
from task.tools.toolbox import named

if TYPE_CHECKING:
    from task.store.store import Store

ANSWERED = ("running", "finished", "limited", "suspended")  # runs whose answer can be given again, now or when they end
UNKNOWN = "There is no open question with the code {code}. Nothing has run."
SEVERAL = "These codes belong to different questions. Answer one question at a time; nothing has run."
WHICH = "Several questions are open here. Say which one you mean, for example: approve {code}"
CLOSED = "This question is closed: another message came after it, or it expired. Nothing has run."
OTHERWISE = (
    "This question was answered differently before, and the first answer counts. Ask again for what is wanted now."
)
BROKEN_OFF = (
    "This question was answered before. What was approved may have run, but the answer was interrupted: say what to do "
    "next."
)
CONTINUES = "Your answer counts. The console that asked continues with the tools of its folder."

# What came: a code, a bare word, a card; any of them once it is known which question it answers; results of the
# caller's tools; any other message. What is open. And the run that this becomes:
# new: a run with these messages, which close what is open. resumed: the suspended run goes on with the answers.
# repeated: the answer of the run that came of it before. retried: a run in place of one that failed at once.
# wait: no run yet, or not here. Any other text is the refusal, and nothing has run.
TABLE: Mapping[tuple[str, str], str] = {
    ("code", "an unknown code"): UNKNOWN,
    ("code", "several questions"): SEVERAL,
    ("code", "a question that the client has not seen"): CLOSED,
    ("word", "no question"): "new",
    ("word", "several questions"): WHICH,
    ("answer", "an expired question"): CLOSED,
    ("answer", "a question answered otherwise"): OTHERWISE,
    ("answer", "a question"): "resumed",
    ("answer", "a question of another door"): CONTINUES,
    ("answer", "a question followed by a message"): CLOSED,
    ("answer", "an answered question"): "repeated",
    ("answer", "an answered question, its run failed at once"): "retried",
    ("answer", "an answered question, its run broke off"): BROKEN_OFF,
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
        """The run that the messages ask for, in the session where one is named.

        The messages may repeat what the session holds.

        Raises:
            NotFound: the caller has no such session, or there is no question with that code.
            Conflict: the session has ended; or the answer is about a question that is closed, was answered
                otherwise, or names none of several that are open.
        """
        incoming = _Preparation(self._profile, await self._services.store.get(), caller, options)
        if session_id is None:
            return await incoming.alone(sent)
        return await incoming.in_session(await incoming.open_session(session_id), sent)

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
        request = await self.prepare(caller, sent, options, session_id)
        if session_id is not None or request.resumes is not None or request.again is not None:
            return request
        store = await self._services.store.get()
        session = await store.sessions.start(caller.owner, session_title(sent), origin)
        return replace(request, new=(*request.history, *request.new), history=(), session=session)

    async def after_run(
        self, caller: RunCaller, run: RunState, session: Session, new: Sequence[Message], options: RunOptions
    ) -> RunRequest:
        """The run that continues the conversation where that one ended; it branches off where others have followed.

        Raises: as `prepare`.
        """
        store = await self._services.store.get()
        return await _Preparation(self._profile, store, caller, options).after_run(run, session, new)

    async def answer(self, caller: RunCaller, approval_id: str, answer: Answer) -> Approval:
        """The question with its answer from a card; the same answer again changes nothing.

        Raises:
            NotFound: the caller was not asked this.
            Conflict: it was answered otherwise, or it has expired.
            InvalidRequest: the changed arguments do not fit the tool.
        """
        approvals = (await self._services.store.get()).approvals
        asked = await approvals.get(caller.owner, approval_id)
        arguments, answer = answer.arguments, replace(answer, arguments=None)
        if arguments is not None and dict(arguments) != dict(asked.arguments):
            profile, tools_caller = self._profile, caller.of_tools()
            own = [*await profile.own_tools(), *await profile.workspace_tools(tools_caller)]
            found = await self._services.mcp.discover(tools_caller, named(own))
            tool = named([*own, *found.tools]).get(asked.tool)
            if tool is None:
                raise Conflict(f"the tool {asked.tool!r} is no longer available; deny the call")
            try:
                arguments = tool.parse(ToolCall(asked.call_id, FunctionCall(asked.tool, packed(dict(arguments)))))
            except ArgumentsError as error:
                raise InvalidRequest(str(error)) from error
            exact = digest(asked.tool, arguments, profile.rules.policy, tool.workspace_access(arguments))
            answer = replace(answer, arguments=arguments, grant=exact)
        if asked.answer == answer:
            return asked
        try:
            return await approvals.answer(caller.owner, approval_id, answer)
        except Conflict:
            now = await approvals.get(caller.owner, approval_id)
            if now.answer == answer:  # the same answer came from another door
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
        options = await options_of(store, caller.owner, run_id)
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
        codes = codes_in(words_of(sent[-1]))
        if codes:
            before = [message for message in sent[:-1] if message.role is Role.ASSISTANT]
            # A client may send the answer alone; a conversation before it must end with the question.
            seen = not before or any(code in before[-1].text() for code in codes)
            return await self._by_code(codes, sent[-1], seen=seen)
        run_id, run = run_of_call(sent[-1].tool_call_id or ""), None
        if run_id is not None:
            with suppress(NotFound):
                run = await self.store.runs.get(self.caller.owner, run_id)
        if run is not None and run.session_id is not None:
            return await self._in_order(await self.open_session(run.session_id), _parted(sent)[1])
        makers = [next(filter(None, (run_of_call(call.id) for call in item.tool_calls)), None) for item in sent]
        kept = await self.store.runs.added(self.caller.owner, list(dict.fromkeys(filter(None, makers))))
        messages: list[Message] = []
        for message, made_by in zip(sent, makers, strict=True):
            added = kept.get(made_by or "")
            if added:  # a caller was sent only the calls of its own tools: here are ours of the same run
                while messages and messages[-1].role is Role.ASSISTANT and not messages[-1].tool_calls:
                    messages.pop()  # some callers send the text before the calls as a message of its own
            messages.extend(added or (message,))
        # Calls that are not the caller's stay open when its results have come.
        theirs = next((message.tool_calls for message in reversed(sent) if message.tool_calls), ())
        ours = {call.id for call in unanswered(messages)} - {call.id for call in theirs}
        turn = max((place for place, message in enumerate(messages) if message.tool_calls), default=0) if ours else 0
        history, new = _parted([*repaired(messages[:turn]), *repaired(messages[turn:], ours)])
        return RunRequest(self.caller, self.options, new, history, files=files_of([*history, *new]))

    async def in_session(self, session: Session, sent: Sequence[Message]) -> RunRequest:
        """Messages for a session; they may repeat what it holds."""
        codes, known = codes_in(words_of(sent[-1])), without_questions(sent)
        if codes:
            return await self._by_code(codes, sent[-1])
        if codes is not None:
            fit = merged(session.messages, known[:-1])
            # If the history differs, a bare "yes" does not answer our question.
            if len(sent) == 1 or not (fit.new or fit.branched):
                asked = await self.store.approvals.list(self.caller.owner, session_id=session.session_id)
                last = await last_run(self.store, self.caller.owner, session.session_id) if not asked else None
                if last is not None and last.status == "suspended":
                    stopped = await self.store.approvals.list(self.caller.owner, run_id=last.run_id, waiting=False)
                    asked = stopped if all(item.answer is not None for item in stopped) else ()
                if asked:
                    return await self._by_word(asked, sent[-1])
        found = await self.store.sessions.resume(session, known)
        return await self._in_order(found.session, found.new)

    async def after_run(self, run: RunState, session: Session, new: Sequence[Message]) -> RunRequest:
        """Messages that continue where that run ended."""
        owner, codes = self.caller.owner, codes_in(words_of(new[-1]))
        if codes:
            return await self._by_code(codes, new[-1])
        if codes is not None and len(new) == 1:
            asked = await self.store.approvals.list(owner, run_id=run.run.run_id, waiting=False)
            if asked:
                return await self._by_word(asked, new[-1])
        held = {message.tool_call_id: message.text() for message in session.messages[run.end or session.length :]}
        if all(message.role is Role.TOOL and held.get(message.tool_call_id) == message.text() for message in new):
            runs = (await self.store.runs.list(owner, session.session_id)).items
            later = [item for item in runs if item.started_at > run.run.started_at]
            if later and later[-1].status in ANSWERED:  # the row "results that came before"
                return RunRequest.repeat(self.caller, later[-1].run_id)
        if run.end is not None and session.length != run.end:
            session = await self.store.sessions.branch(owner, session.session_id, run.end)
        if session.ended_at is not None:
            raise Conflict(f"the session {session.session_id} has ended; start a new one")
        return await self._in_order(session, new)

    async def resumed(self, came: str, run_id: str, asked: Sequence[Approval]) -> RunRequest | None:
        """The run that continues the one that has asked this, or that has continued it before."""
        owner, runs = self.caller.owner, self.store.runs
        if any(item.status == "waiting" for item in asked):
            return self._run((came, "other questions of the run"))
        later = await runs.resumed_by(owner, run_id)
        if later is None and not self.profile.continues((await options_of(self.store, owner, run_id)).door):
            return self._run((came, "a question of another door"))
        await runs.ended(owner, run_id)  # its calls are in the session from then on
        session = await self.store.sessions.get(owner, asked[0].session_id or "")
        if later is None:
            last = await last_run(self.store, owner, session.session_id)
            calls = {call.id for call in unanswered(session.messages)}  # ids of calls recur
            if calls and calls <= {item.call_id for item in asked} and (last is None or last.run_id == run_id):
                return self._run((came, "a question"), session, run_id, asked)
            later = await runs.resumed_by(owner, run_id)  # by the same answer, just now
            found = "an answered question" if later is not None else "a question followed by a message"
            return self._run((came, found), session, later.run_id if later is not None else run_id)
        found = "an answered question"
        if came != "card":
            while later.status not in ANSWERED and (after := await runs.resumed_by(owner, later.run_id)):
                later = after
        if came != "card" and later.status not in ANSWERED:
            # A run that failed before it wrote anything is continued where it stopped: what was approved has run.
            at_once = session.messages[-1].role is Role.TOOL and not unanswered(session.messages)
            found += ", its run failed at once" if at_once else ", its run broke off"
        return self._run((came, found), session, later.run_id)

    async def open_session(self, session_id: str) -> Session:
        session = await self.store.sessions.get(self.caller.owner, session_id)
        if session.ended_at is not None:
            raise Conflict(f"the session {session_id} has ended; start a new one")
        return session

    async def _by_code(self, codes: Sequence[str], said: Message, *, seen: bool = True) -> RunRequest:
        coded: list[Approval] = []
        for code in codes:
            found = await self.store.approvals.coded(self.caller.owner, code)
            if found is None:
                raise NotFound(TABLE["code", "an unknown code"].format(code=code))
            coded.append(found)
        if len({item.run_id for item in coded}) > 1:
            raise Conflict(TABLE["code", "several questions"])
        if not seen:
            raise Conflict(TABLE["code", "a question that the client has not seen"])
        return await self._answered(coded[0].run_id or "", said, codes)

    async def _by_word(self, asked: Sequence[Approval], said: Message) -> RunRequest:
        if len(asked) > 1:
            raise Conflict(TABLE["word", "several questions"].format(code=asked[0].code))
        return await self._answered(asked[0].run_id or "", said, (asked[0].code,))

    async def _answered(self, run_id: str, said: Message, named: Collection[str]) -> RunRequest:
        """Keep the answers; nothing is kept where one that the words name cannot count."""
        owner, approvals = self.caller.owner, self.store.approvals
        await self.store.runs.ended(owner, run_id)  # it puts its questions one after the other
        asked = await approvals.list(owner, run_id=run_id, waiting=False)
        pairs = zip(asked, read_reply(words_of(said), None, [item.code for item in asked]) or (), strict=True)
        answers = {item.approval_id: answer for item, answer in pairs}
        for item in asked:
            if item.code in named:
                _check_open(item, answers[item.approval_id])
        for item in asked:
            if item.status == "waiting":
                try:
                    await approvals.answer(owner, item.approval_id, answers[item.approval_id])
                except Conflict:  # another door was faster
                    _check_open(await approvals.get(owner, item.approval_id), answers[item.approval_id])
        kept = await approvals.list(owner, run_id=run_id, waiting=False)
        request = await self.resumed("answer", run_id, kept)
        assert request is not None  # every question of the run has its answer now
        return request

    async def _in_order(self, session: Session, new: Sequence[Message]) -> RunRequest:
        """Messages or results that follow what the session holds."""
        owner, calls = self.caller.owner, unanswered(session.messages)
        last = await last_run(self.store, owner, session.session_id)
        results = all(message.role is Role.TOOL for message in new)
        # Only the run that made the calls has asked about them: ids of calls recur, and earlier answers do not count.
        used = last is not None and last.resumes is not None and last.status != "suspended"
        asked: dict[str, Approval] = {}
        if calls and last is not None:
            run_id = last.resumes if used else last.run_id
            found = await self.store.approvals.list(owner, run_id=run_id, waiting=False)
            asked = {item.call_id: item for item in found if item.call_id in {call.id for call in calls}}
        since = max((n for n, message in enumerate(session.messages) if message.role is Role.USER), default=-1)
        held = {message.tool_call_id for message in session.messages[since + 1 :]} - {call.id for call in calls}
        if not results:
            row = ("message", "calls or questions" if calls else "nothing")
        elif not all(message.tool_call_id in held for message in new):
            row = ("results", "their calls")
        elif last is not None and last.status in ANSWERED:
            row = ("results", "results that came before")
        else:
            row = ("results", "results that came before, their run failed")
        if TABLE[row] == "repeated" and last is not None:
            return RunRequest.repeat(self.caller, last.run_id)
        new = () if TABLE[row] == "retried" else new
        closed = await self._closed(calls, new, asked, results=results, used=used)
        if not session.title and not session.messages and new:
            await self.store.sessions.rename(owner, session.session_id, session_title(new))
        known, files = session.messages, files_of([*session.messages, *new])
        return RunRequest(self.caller, self.options, (*closed, *new), known, session, files)

    async def _closed(
        self,
        calls: Sequence[ToolCall],
        new: Sequence[Message],
        asked: Mapping[str, Approval],
        *,
        results: bool,
        used: bool,
    ) -> list[Message]:
        """Results for the calls that will not run, whose questions are withdrawn. Where only results of the caller's
        tools come, our own calls stay open: the user is asked about them next."""
        theirs, closed = {tool["name"] for tool in self.options.tools}, list[Message]()
        given = {message.tool_call_id for message in new if message.role is Role.TOOL}
        for call in calls:
            if call.id in given or (results and call.name not in theirs):
                continue
            question = asked.get(call.id)
            if question is None:
                reason = NO_RESULT if call.name in theirs else INTERRUPTED
            elif question.status == "allowed":
                reason = PERHAPS_RUN if used else INTERRUPTED
            else:
                reason = NOT_APPROVED
            closed.append(tool_message(call, reason, failed=True))
            if question is not None and question.status == "waiting":
                answer = Answer(False, "another message came")
                await self.store.approvals.answer(self.caller.owner, question.approval_id, answer)
        return closed

    def _run(
        self, row: tuple[str, str], session: Session | None = None, run_id: str = "", answered: Sequence[Approval] = ()
    ) -> RunRequest | None:
        """The run of a row of the table; `run_id` is the one that is resumed, repeated or retried."""
        match TABLE[row]:
            case "wait":
                return None
            case "repeated":
                return RunRequest.repeat(self.caller, run_id)
            case "resumed" | "retried" if session is not None:
                known, files = session.messages, files_of(session.messages)
                return RunRequest(self.caller, self.options, (), known, session, files, tuple(answered), run_id or None)
            case refusal:
                raise Conflict(refusal)


async def options_of(store: Store, owner: str, run_id: str) -> RunOptions:
    """The options of a run, for the one that continues it.

    Raises:
        NotFound: the owner has no such run.
    """
    async for event in store.runs.events_after(owner, run_id):
        if event.type == "started":
            return replace(RunOptions.from_dict(event.data["request"]), choice=None)  # it is for the first run only
    raise NotFound(f"there is no run {run_id!r}")


async def last_run(store: Store, owner: str, session_id: str) -> Run | None:
    runs = (await store.runs.list(owner, session_id, limit=1)).items
    return runs[0] if runs else None


def files_of(messages: Sequence[Message]) -> tuple[Attachment, ...]:
    """The files of the user's messages."""
    return tuple(item for message in messages if message.role is Role.USER for item in message.attachments)


def _check_open(item: Approval, answer: Answer) -> None:
    if item.status == "expired":
        raise Conflict(TABLE["answer", "an expired question"])
    if item.answer is not None and item.answer.allowed != answer.allowed:
        raise Conflict(TABLE["answer", "a question answered otherwise"])


def _parted(messages: Sequence[Message]) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """What came before, and the last message or the results at the end."""
    start = len(messages)
    while start and messages[start - 1].role is Role.TOOL:
        start -= 1
    start -= start == len(messages) and start > 0
    if not messages or messages[-1].role is Role.ASSISTANT:
        raise InvalidRequest("The last message is the result of a call that no message before it makes.")
    return tuple(messages[:start]), tuple(messages[start:])
