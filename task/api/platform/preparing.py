"""Turn a request into a run: find its session, complete its messages, and decide or give up waiting calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from task.api.edge.identity import ApiCaller
from task.api.openai.incoming import IncomingMessages
from task.api.platform.idempotency import ANSWERED, asked_before, taken
from task.api.platform.kept_turns import completed
from task.api.platform.replying import decided_alone, decided_in, files_of, resuming
from task.api.platform.run_request import RunOptions, RunRequest, session_title
from task.conversation.history import INTERRUPTED, NOT_APPROVED, repaired, unanswered
from task.conversation.messages import Message, Role, ToolCall, tool_message
from task.errors import Conflict, InvalidRequest, NotFound
from task.product import Product
from task.store.records import Answer, Approval, Session
from task.store.store import Store
from task.tools.client_tools import NO_RESULT


@dataclass(frozen=True, slots=True)
class Preparing:
    """Turns the requests of the HTTP door into runs."""

    product: Product

    async def prepare(
        self,
        caller: ApiCaller,
        received: IncomingMessages,
        options: RunOptions,
        session_id: str | None,
        *,
        whole: bool = False,
    ) -> RunRequest:
        """The run that the request asks for; `whole`: all its messages are new, none repeats what the session holds.

        Raises:
            NotFound: the caller has no such session.
            Conflict: the session has ended.
        """
        store = await self.product.store.get()
        if session_id is None:
            return await self._alone(store, caller, received, options)
        session = await store.sessions.get(caller.owner, session_id)
        if session.ended_at is not None:
            raise Conflict(f"the session {session_id} has ended; start another one")
        decided = await decided_in(store, caller, session, received, options)
        if decided is not None:
            return decided
        if whole:
            return await self._after(store, caller, session, received.messages, options)
        conversation = await completed(store, caller.owner, options.prompt, received.messages)
        found = await store.sessions.resume(caller.owner, session_id, conversation.messages)
        return await self._after(store, caller, found.session, found.new, options)

    async def in_new_session(self, caller: ApiCaller, received: IncomingMessages, options: RunOptions) -> RunRequest:
        """The run in a session that begins with it, or in the one whose question the last message answers."""
        store = await self.product.store.get()
        request = await self._alone(store, caller, received, options)
        if request.start is not None or request.again is not None:
            return request
        session = await store.sessions.start(caller.owner, session_title(received.messages[-1]))
        return replace(request, new=(*request.history, *request.new), history=(), session=session)

    async def resumed(self, caller: ApiCaller, run_id: str) -> RunRequest | None:
        """The run that continues a suspended one; None while one of its questions is open, or where it was resumed."""
        store = await self.product.store.get()
        approvals = await store.approvals.list(caller.owner, run_id=run_id, waiting=False)
        session_id = next((item.session_id for item in approvals if item.session_id), None)
        if session_id is None or any(item.status == "waiting" for item in approvals):
            return None
        await store.runs.ended(caller.owner, run_id)  # its calls are in the session from then on
        session = await store.sessions.get(caller.owner, session_id)
        waiting = {call.id for call in unanswered(session.messages)}
        if not waiting or not waiting <= {item.call_id for item in approvals}:
            return None
        return resuming(caller, session, approvals, await self._options(store, caller, run_id))

    async def _alone(
        self, store: Store, caller: ApiCaller, received: IncomingMessages, options: RunOptions
    ) -> RunRequest:
        sent = received.messages
        known = await decided_alone(store, caller, sent, options) or await asked_before(
            store, caller, received, options
        )
        if known is not None:
            return known
        conversation = await completed(store, caller.owner, options.prompt, sent)
        history, new = _parted(_repaired(conversation.messages, sent))
        return RunRequest(caller, options, new, history, files=files_of([*history, *new]), sent=sent)

    async def _after(
        self, store: Store, caller: ApiCaller, session: Session, new: Sequence[Message], options: RunOptions
    ) -> RunRequest:
        if taken(session.messages, new):
            last = (await store.runs.list(caller.owner, session.session_id, limit=1)).items
            if last and last[0].status in ANSWERED:
                return RunRequest(caller, options, (), again=last[0].run_id)
            new = ()  # the run that took them has failed
        asked = await self._asked(store, caller, session)
        answered = tuple(item for item in asked if item.status != "waiting")
        theirs = {tool["name"] for tool in options.tools}
        given_up = _given_up(session.messages, new, {item.call_id: item in answered for item in asked}, theirs)
        for message in given_up:
            await self._withdraw(store, caller, session, message)
        if not session.title and not session.messages and new:
            await store.sessions.rename(caller.owner, session.session_id, session_title(new[0]))
        history = session.messages
        return RunRequest(caller, options, (*given_up, *new), history, session, files_of([*history, *new]), answered)

    async def _asked(self, store: Store, caller: ApiCaller, session: Session) -> tuple[Approval, ...]:
        # Only the last run has asked about them: ids of calls come again, and an answer from before is none to them.
        calls = {call.id for call in unanswered(session.messages)}
        last = (await store.runs.list(caller.owner, session.session_id, limit=1)).items if calls else ()
        if not last:
            return ()
        found = await store.approvals.list(caller.owner, run_id=last[0].run_id, waiting=False)
        return tuple(item for item in found if item.call_id in calls)

    async def _withdraw(self, store: Store, caller: ApiCaller, session: Session, message: Message) -> None:
        for item in await store.approvals.list(caller.owner, session_id=session.session_id):
            if item.call_id == message.tool_call_id:
                try:
                    await store.approvals.answer(caller.owner, item.approval_id, Answer(False, "another message came"))
                except Conflict:
                    continue

    async def _options(self, store: Store, caller: ApiCaller, run_id: str) -> RunOptions:
        async for event in store.runs.events_after(caller.owner, run_id):
            if event.type == "started":
                return replace(RunOptions.from_dict(event.data["request"]), choice=None)  # it is for the first run only
        raise NotFound(f"there is no run {run_id!r}")


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


def _given_up(
    history: Sequence[Message], new: Sequence[Message], asked: Mapping[str, bool], theirs: Collection[str]
) -> list[Message]:
    # `asked` holds the calls that somebody was asked about, and whether that was answered; `theirs` are names of the
    # caller's tools. Results of these give up no call of ours: somebody is asked about it then.
    answered = {message.tool_call_id for message in new if message.role is Role.TOOL}
    nothing_else = all(message.role is Role.TOOL for message in new)
    return [
        tool_message(call, _reason(call, asked, theirs), failed=True)
        for call in unanswered(history)
        if call.id not in answered and not asked.get(call.id) and not (nothing_else and call.name not in theirs)
    ]


def _reason(call: ToolCall, asked: Collection[str], theirs: Collection[str]) -> str:
    if call.id in asked:
        return NOT_APPROVED
    return NO_RESULT if call.name in theirs else INTERRUPTED
