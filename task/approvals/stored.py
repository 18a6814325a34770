"""The approvals of a recorded run: decisions made before it, questions it asks, and grants it leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from task.approvals.questions import question
from task.approvals.rules import DENIED, EXPIRED, ApprovalRules
from task.conversation.messages import FunctionCall, Message, ToolCall
from task.permissions.gate import PriorDecisions
from task.permissions.grants import Grant, Grants
from task.permissions.icerc import plain
from task.store.records import Approval
from task.tools.toolbox import Pending

if TYPE_CHECKING:
    from task.store.store import Store

ALWAYS = "always"
OTHER_ARGUMENTS = "[The user approved this call with other arguments: {arguments}]"


@dataclass(slots=True)
class RunApprovals:
    """What one run may do: the rules, the grants of its session, and the decisions just made."""

    rules: ApprovalRules
    store: Store
    owner: str
    conversation: str
    session_id: str | None
    run_id: str
    grants: Grants
    denials: dict[str, str] = field(default_factory=dict[str, str])
    edits: dict[str, str] = field(default_factory=dict[str, str])
    _before: list[Grant] = field(default_factory=list[Grant])

    @classmethod
    async def of(
        cls,
        store: Store,
        rules: ApprovalRules,
        owner: str,
        session_id: str | None,
        answered: Sequence[Approval],
        run_id: str,
    ) -> RunApprovals:
        """The approvals of a run that continues after these `answered` questions."""
        found = cls(rules, store, owner, session_id or run_id, session_id, run_id, Grants(rules.clock))
        if session_id is not None:
            found.grants = await found._stored()
        found._before = found.grants.lasting()
        for approval in answered:
            found._take(approval)
        return found

    def decisions(self) -> PriorDecisions:
        """What the gate of the run starts from."""
        return PriorDecisions(self.grants, self.owner, self.conversation, self.denials, self._before_a_call)

    def history(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation with the calls as they were approved."""
        return [self._edited(message) for message in messages] if self.edits else list(messages)

    def with_notes(self, added: Sequence[Message]) -> tuple[Message, ...]:
        """The run's messages; results of changed calls note the new arguments, as the stored call has the old ones."""
        return tuple(self._with_note(message) for message in added)

    async def ask(
        self, pending: Sequence[Pending], run_id: str, session_id: str, said: str
    ) -> tuple[str, list[Approval]]:
        """Store a question about each of these calls; returns their text, to follow `said`, and the questions."""
        asked = [await self._ask(item, run_id, session_id) for item in pending]
        return question(pending, [item.code for item in asked], self.rules.open_seconds, said), asked

    async def save_grants(self) -> None:
        """Store the grants that outlast this run."""
        for grant in self.grants.lasting():
            if grant not in self._before:
                seconds = grant.expires - self.rules.clock()
                data = {**grant.as_dict(), "description": grant.describe()}
                await self.store.grants.add(self.owner, data, session_id=self.session_id, seconds=seconds)

    async def _stored(self) -> Grants:
        stored = await self.store.grants.list(self.owner, self.session_id)
        return Grants.from_list([item.data for item in stored], self.rules.clock)

    async def _before_a_call(self) -> None:
        await self.store.runs.hold(self.run_id)
        await self._drop_revoked()

    async def _drop_revoked(self) -> None:
        if not self._before:
            return
        valid = (await self._stored()).lasting()
        for grant in [grant for grant in self._before if grant not in valid]:
            self._before.remove(grant)
            self.grants.revoke(grant)

    async def _ask(self, item: Pending, run_id: str, session_id: str) -> Approval:
        card = {
            **item.card.displayed(),
            "reason": plain(item.reason),
            "grant_description": plain(item.grant_description),
        }
        return await self.store.approvals.ask(
            self.owner, call_id=item.call.id, tool=item.call.name, arguments=item.arguments, digest=item.digest,
            card=card, seconds=self.rules.open_seconds, session_id=session_id, run_id=run_id,
        )  # fmt: skip

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
