"""A person's decision, in words or on a card: which question it answers, and the run that continues."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from task.conversation.history import unanswered
from task.conversation.messages import Attachment, FunctionCall, Message, Role, ToolCall
from task.conversation.replies import Answer, codes_in, read_reply
from task.errors import ArgumentsError, Conflict, InvalidRequest, NotFound
from task.permissions.gate import digest
from task.product import Product
from task.runs.request import RunCaller, RunOptions, RunRequest
from task.store.records import Approval, Run, Session, packed
from task.tools.base import BaseTool
from task.tools.models import Caller
from task.tools.toolbox import named

if TYPE_CHECKING:
    from task.store.store import Store

ANSWERED = ("running", "finished", "limited", "suspended")  # runs whose answer can be given again, now or when they end
UNKNOWN = "There is no open question with the code {code}. Nothing has run."
SEVERAL = "These codes belong to different questions. Answer one question at a time; nothing has run."
CLOSED = "This question is closed: another message came after it, or it expired. Nothing has run."
OTHERWISE = (
    "This question was answered differently before, and the first answer counts. Ask again for what is wanted now."
)
BROKEN_OFF = (
    "This question was answered before. What was approved may have run, but the answer was interrupted: say what to do "
    "next."
)

CONTINUES = "Your answer counts. The console that asked continues with the tools of its folder."


@dataclass(frozen=True, slots=True)
class Deciding:
    """Finds what the caller's words decide; `options` are for the run that continues."""

    product: Product
    store: Store
    caller: RunCaller
    options: RunOptions

    async def by_code(self, sent: Sequence[Message], *, alone: bool = False) -> RunRequest | None:
        """The run of the question whose code the last message names; None: it names none.

        `alone`: `sent` is all that is known of the conversation.

        Raises:
            NotFound: the caller has no such question.
            Conflict: it is closed or was answered otherwise, or the codes are those of several questions.
        """
        words = words_of(sent[-1])
        codes = codes_in(words)
        if not codes:
            return None
        asked = [await self._coded(code) for code in codes]
        if len({item.run_id for item in asked}) > 1:
            raise Conflict(SEVERAL)
        if alone and not _shown(sent, codes):
            raise Conflict(CLOSED)
        return await self._decide(asked[0].run_id or "", words, codes)

    async def in_session(self, session_id: str, said: Message) -> RunRequest | None:
        """The run of the session's one open question, or of its one answered question that no run has taken up; None:
        the message is not a bare word, or there is none.

        Raises:
            Conflict: there are several, or it was answered otherwise.
        """
        if not is_bare(said):
            return None
        asked = await self.store.approvals.list(self.caller.owner, session_id=session_id)
        last = await last_run(self.store, self.caller.owner, session_id) if not asked else None
        if last is not None and last.status == "suspended":
            stopped = await self.store.approvals.list(self.caller.owner, run_id=last.run_id, waiting=False)
            asked = stopped if all(item.answer is not None for item in stopped) else ()
        return await self._one(asked, said)

    async def after_run(self, run_id: str, said: Message) -> RunRequest | None:
        """The run of the one question that this run has asked; None: the message is not a bare word, or it asked none.

        Raises: as `in_session`, and Conflict: it is closed.
        """
        if not is_bare(said):
            return None
        return await self._one(await self.store.approvals.list(self.caller.owner, run_id=run_id, waiting=False), said)

    async def resuming(self, run_id: str, asked: Sequence[Approval]) -> RunRequest:
        """The run that continues the one that has asked this, and nothing has followed in the session.

        Raises:
            Conflict: something has.
        """
        await self.store.runs.ended(self.caller.owner, run_id)  # its calls are in the session from then on
        session = await self.store.sessions.get(self.caller.owner, asked[0].session_id or "")
        last = await last_run(self.store, self.caller.owner, session.session_id)
        calls = {call.id for call in unanswered(session.messages)}  # ids of calls recur
        if not calls or not calls <= {item.call_id for item in asked} or (last and last.run_id != run_id):
            if later := await self.store.runs.resumed_by(self.caller.owner, run_id):  # by the same answer, just now
                return RunRequest.repeat(self.caller, later.run_id)
            raise Conflict(CLOSED)
        return self._after_end(session, asked, run_id)

    def _after_end(self, session: Session, asked: Sequence[Approval], run_id: str) -> RunRequest:
        history = session.messages
        return RunRequest(
            self.caller, self.options, (), history, session, files_of(history), tuple(asked), resumes=run_id
        )

    async def _coded(self, code: str) -> Approval:
        found = await self.store.approvals.coded(self.caller.owner, code)
        if found is None:
            raise NotFound(UNKNOWN.format(code=code))
        return found

    async def _one(self, asked: Sequence[Approval], said: Message) -> RunRequest | None:
        if not asked:
            return None
        code = asked[0].code
        if len(asked) > 1:
            raise Conflict(f"Several questions are open here. Say which one you mean, for example: approve {code}")
        return await self._decide(asked[0].run_id or "", words_of(said), (code,))

    async def _decide(self, run_id: str, words: str, named: Collection[str]) -> RunRequest:
        asked = await self.store.approvals.list(self.caller.owner, run_id=run_id, waiting=False)
        verdicts = read_reply(words, None, [item.code for item in asked])
        pairs = list(zip(asked, verdicts or (), strict=True))
        for item, verdict in pairs:
            if item.code in named:
                _check_open(item, verdict)
        answered = [
            await self._answered(item, verdict) if item.status == "waiting" else item for item, verdict in pairs
        ]
        return await self._continued(run_id, answered)

    async def _answered(self, item: Approval, verdict: Answer) -> Approval:
        try:
            return await self.store.approvals.answer(self.caller.owner, item.approval_id, verdict)
        except Conflict:  # another door was faster
            found = await self.store.approvals.get(self.caller.owner, item.approval_id)
            _check_open(found, verdict)
            return found

    async def _continued(self, run_id: str, asked: Sequence[Approval]) -> RunRequest:
        owner, runs = self.caller.owner, self.store.runs
        later = await runs.resumed_by(owner, run_id)
        if later is None:
            if not self.product.continues((await options_of(self.store, owner, run_id)).door):
                raise Conflict(CONTINUES)
            return await self.resuming(run_id, asked)
        session = await self.store.sessions.get(owner, asked[0].session_id or "")
        run: Run = later
        while run.status not in ANSWERED and (later := await runs.resumed_by(owner, run.run_id)):
            run = later
        if run.status in ANSWERED:
            return RunRequest.repeat(self.caller, run.run_id)
        # A run that failed before it wrote anything is continued where it stopped: what was approved has run.
        if session.messages[-1].role is Role.TOOL and not unanswered(session.messages):
            return self._after_end(session, (), run.run_id)
        raise Conflict(BROKEN_OFF)


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


def words_of(message: Message) -> str:
    """The user's text; empty where the message has parts, because a decision is text only."""
    return message.content if message.role is Role.USER and isinstance(message.content, str) else ""


def is_bare(said: Message) -> bool:
    """Whether the message is a decision in plain words, without a code."""
    return codes_in(words_of(said)) == ()


def files_of(messages: Sequence[Message]) -> tuple[Attachment, ...]:
    """The files of the user's messages."""
    return tuple(
        item
        for message in messages
        if message.role is Role.USER and message.custom_content is not None
        for item in message.custom_content.attachments
    )


def _check_open(item: Approval, verdict: Answer) -> None:
    if item.status == "expired":
        raise Conflict(CLOSED)
    if item.answer is not None and item.answer.allowed != verdict.allowed:
        raise Conflict(OTHERWISE)


def _shown(sent: Sequence[Message], codes: Collection[str]) -> bool:
    # A client may send the decision alone; a conversation before it must end with the question.
    answers = [message for message in sent[:-1] if message.role is Role.ASSISTANT]
    return not answers or any(code and code in answers[-1].text() for code in codes)


@dataclass(frozen=True, slots=True)
class Cards:
    """Takes decisions about calls that wait."""

    product: Product

    async def answer(
        self,
        caller: RunCaller,
        approval_id: str,
        answer: Answer,
    ) -> Approval:
        """The answered question; the same answer again changes nothing.

        Raises:
            NotFound: the caller was not asked this.
            Conflict: it was answered otherwise, or it has expired.
            InvalidRequest: the changed arguments do not fit the tool.
        """
        approvals = (await self.product.store.get()).approvals
        asked = await approvals.get(caller.owner, approval_id)
        if answer.arguments is not None:
            changed = answer.allowed and dict(answer.arguments) != dict(asked.arguments)
            answer = (
                await self._changed(caller, asked, answer, answer.arguments)
                if changed
                else replace(answer, arguments=None)
            )
        if asked.answer == answer:
            return asked
        try:
            return await approvals.answer(caller.owner, approval_id, answer)
        except Conflict:
            found = await approvals.get(caller.owner, approval_id)
            if found.answer == answer:  # the same answer came from another door
                return found
            raise

    async def _changed(self, caller: RunCaller, asked: Approval, answer: Answer, changed: Mapping[str, Any]) -> Answer:
        tool = (await self._tools(caller)).get(asked.tool)
        if tool is None:
            raise Conflict(f"the tool {asked.tool!r} is no longer available; deny the call")
        try:
            call = ToolCall(asked.call_id, FunctionCall(asked.tool, packed(dict(changed))))
            arguments = tool.parse(call)
        except ArgumentsError as error:
            raise InvalidRequest(str(error)) from error
        return replace(
            answer,
            arguments=arguments,
            grant=digest(asked.tool, arguments, self.product.approval_rules.policy, tool.workspace_access(arguments)),
        )

    async def _tools(self, caller: RunCaller) -> dict[str, BaseTool]:
        async def principal() -> str:
            return caller.owner

        tools_caller = Caller(caller.core_key, principal, "", dict(caller.headers))
        own = [*await self.product.own_tools(), *await self.product.workspace_tools(tools_caller)]
        found = await self.product.mcp.discover(tools_caller, named(own))
        return named([*own, *found.tools])
