"""Ask a person about calls of a run that is suspended for it, and take the answers."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from task.api.edge.identity import ApiCaller
from task.api.platform.choice import RunChoice
from task.api.platform.kept_turns import conversation_key
from task.api.platform.run_request import RunRequest, session_title
from task.api.platform.schemas import ApprovalAnswer, ApprovalBody
from task.api.platform.web_search import with_web_search
from task.approvals.questions import question
from task.approvals.rules import DENIED, EXPIRED, ApprovalRules
from task.conversation.messages import FunctionCall, Message, Role, ToolCall
from task.conversation.replies import new_code
from task.errors import ArgumentsError, Conflict, InvalidRequest
from task.permissions.gate import PriorDecisions, digest
from task.permissions.grants import Grant, Grants
from task.product import Product
from task.store.records import Answer, Approval, Run, Session, packed
from task.store.store import Store
from task.tools.base import BaseTool
from task.tools.models import Caller
from task.tools.toolbox import Pending, named

ALWAYS = "always"
OTHER_ARGUMENTS = "[The user approved this call with other arguments: {arguments}]"


@dataclass(slots=True)
class RunPermissions:
    """What one run may do: the rules, what was allowed in its session before, and what was just decided."""

    rules: ApprovalRules
    store: Store
    owner: str
    conversation: str
    session_id: str | None
    grants: Grants
    denials: dict[str, str] = field(default_factory=dict[str, str])
    edits: dict[str, str] = field(default_factory=dict[str, str])
    _before: list[Grant] = field(default_factory=list[Grant])

    @classmethod
    async def of(cls, request: RunRequest, run: Run, store: Store, rules: ApprovalRules) -> RunPermissions:
        owner, session_id = request.caller.owner, run.session_id
        stored = await store.grants.list(owner, session_id) if session_id is not None else ()
        grants = Grants.from_list([item.data for item in stored], rules.clock)
        permissions = cls(rules, store, owner, session_id or run.run_id, session_id, grants)
        permissions._before = grants.lasting()
        for approval in request.answered:
            permissions._take(approval)
        return permissions

    def _take(self, approval: Approval) -> None:
        answer = approval.answer
        if answer is None or not answer.allowed:
            reason = answer.reason if answer is not None else ""
            text = DENIED if approval.status == "denied" else EXPIRED
            self.denials[approval.call_id] = f"{text}: {reason}" if reason else text.removesuffix(".")
            return
        if answer.arguments is not None:
            self.edits[approval.call_id] = json.dumps(dict(answer.arguments), ensure_ascii=False)
        expires = self.rules.clock() + self.rules.grant_seconds
        self.grants.add(
            Grant(
                "call", approval.tool, self.owner, self.conversation, expires,
                digest=answer.grant or approval.digest, once=True, widens=answer.reason == ALWAYS,
            )
        )  # fmt: skip

    def decisions(self) -> PriorDecisions:
        """What the gate of the run starts from."""
        return PriorDecisions(self.grants, self.owner, self.conversation, self.denials)

    def history(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation with the calls as they were approved."""
        return [self._edited(message) for message in messages] if self.edits else list(messages)

    def with_notes(self, added: Sequence[Message]) -> tuple[Message, ...]:
        """The run's messages; results of calls that were changed say so, because the stored call is the old one."""
        return tuple(self._with_note(message) for message in added)

    async def save_grants(self) -> None:
        """Store what has been allowed for longer than this run."""
        for grant in self.grants.lasting():
            if grant not in self._before:
                seconds = grant.expires - self.rules.clock()
                data = {**grant.as_dict(), "told": grant.describe()}
                await self.store.grants.add(self.owner, data, session_id=self.session_id, seconds=seconds)

    def _edited(self, message: Message) -> Message:
        if not any(call.id in self.edits for call in message.tool_calls):
            return message
        return replace(message, tool_calls=tuple(map(self._edited_call, message.tool_calls)))

    def _edited_call(self, call: ToolCall) -> ToolCall:
        arguments = self.edits.get(call.id)
        return call if arguments is None else replace(call, function=FunctionCall(call.name, arguments))

    def _with_note(self, message: Message) -> Message:
        arguments = self.edits.get(message.tool_call_id or "")
        if arguments is None:
            return message
        return replace(message, content=f"{OTHER_ARGUMENTS.format(arguments=arguments)}\n\n{message.text()}")


class Suspension:
    """The calls with which a run was suspended: `calls` are the caller's to make, the others wait for a person.

    Where there are both, the caller's come first: a program answers at once and sends nothing but its results, which
    would be in the place of the person's decision. The others stay open, and the run that the results start asks
    about them.
    """

    def __init__(self, permissions: RunPermissions, pending: Sequence[Pending], others: Collection[str]) -> None:
        self.calls = tuple(item.call for item in pending if item.call.name in others)
        self._waiting = [] if self.calls else list(pending)
        self._permissions = permissions

    async def ask(
        self, request: RunRequest, run: Run, added: Sequence[Message], choice: RunChoice
    ) -> tuple[str, str | None]:
        """Ask the question; its text, and the session that was made for it where the run had none."""
        if self.calls:
            choice.emit("tool_calls", tool_calls=[call.as_dict() for call in self.calls])
        if not self._waiting:
            return "", None
        made = None if run.session_id is not None else await self._session(request, added)
        session_id = run.session_id or (made.session_id if made else None)
        codes = list[str]()
        for _ in self._waiting:
            codes.append(new_code(codes))
        text = question(self._waiting, codes, self._permissions.rules.open_seconds)
        key = conversation_key(request.caller.owner, request.options.prompt, request.sent) if request.sent else ""
        put = {"session_id": session_id, "run_id": run.run_id, "question": text, "conversation": key}
        approvals = [await self._ask(item, code, put) for item, code in zip(self._waiting, codes, strict=True)]
        bodies = [ApprovalBody.model_validate(item, from_attributes=True).model_dump() for item in approvals]
        choice.emit("approval", approvals=bodies, text=text)
        return text, made.session_id if made else None

    async def _session(self, request: RunRequest, added: Sequence[Message]) -> Session:
        sessions = self._permissions.store.sessions
        asked = [message for message in (*request.history, *request.new) if message.role is Role.USER]
        session = await sessions.start(request.caller.owner, session_title(asked[-1]) if asked else "")
        await sessions.append(
            request.caller.owner, session.session_id, [*request.history, *request.new, *added], session.version
        )
        return session

    async def _ask(self, item: Pending, code: str, put: Mapping[str, Any]) -> Approval:
        permissions = self._permissions
        card = {**item.card.as_dict(), "reason": item.reason, "grant_told": item.grant_description, "code": code}
        return await permissions.store.approvals.ask(
            permissions.owner, call_id=item.call.id, tool=item.call.name, arguments=item.arguments, digest=item.digest,
            card=card, seconds=permissions.rules.open_seconds, **put,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Decisions:
    """Takes answers; changed arguments are checked, and the answer is bound to the digest of the changed call."""

    product: Product

    async def answer(self, caller: ApiCaller, approval_id: str, given: ApprovalAnswer) -> Approval:
        """The answered question.

        Raises:
            NotFound: the caller was not asked this.
            Conflict: it was answered before, or it has expired.
            InvalidRequest: the changed arguments do not fit the tool.
        """
        store = await self.product.store.get()
        asked = await store.approvals.get(caller.owner, approval_id)
        if asked.status != "waiting":
            raise Conflict(f"the approval {approval_id} is {asked.status} already")
        if given.decision == "deny":
            return await store.approvals.answer(caller.owner, approval_id, Answer(False, given.reason))
        answer = Answer(True, ALWAYS if given.decision == "always" else "")
        if given.arguments is not None and dict(given.arguments) != dict(asked.arguments):
            answer = await self._changed(caller, asked, answer, given)
        return await store.approvals.answer(caller.owner, approval_id, answer)

    async def _changed(self, caller: ApiCaller, asked: Approval, answer: Answer, given: ApprovalAnswer) -> Answer:
        tool = (await self._tools(caller)).get(asked.tool)
        if tool is None:
            raise Conflict(f"there is no tool {asked.tool!r} any more; deny the call")
        try:
            call = ToolCall(asked.call_id, FunctionCall(asked.tool, packed(dict(given.arguments or {}))))
            arguments = tool.parse(call)
        except ArgumentsError as error:
            raise InvalidRequest(str(error)) from error
        policy = self.product.approval_rules.policy
        return replace(answer, arguments=arguments, grant=digest(asked.tool, arguments, policy))

    async def _tools(self, caller: ApiCaller) -> dict[str, BaseTool]:
        async def principal() -> str:
            return caller.owner

        own = self.product.tools
        tools_caller = Caller(caller.core_key, principal, "", dict(caller.headers))
        found = await self.product.mcp.discover(tools_caller, named(own))
        return named(with_web_search([*own, *found.tools]))
