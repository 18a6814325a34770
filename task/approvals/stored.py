"""The approvals of a recorded run, kept in the store: answers given before it, questions it asks, grants it leaves."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from task.approvals.approvals import Approvals
from task.approvals.questions import question
from task.approvals.rules import ApprovalRules
from task.conversation.messages import FunctionCall, Message, ToolCall
from task.permissions.grants import Grant, Grants
from task.permissions.icerc import plain
from task.store.records import Approval
from task.tools.toolbox import Pending

if TYPE_CHECKING:
    from task.store.store import Store

OTHER_ARGUMENTS = "[The user approved this call with other arguments: {arguments}]"


@dataclass(slots=True, kw_only=True)
class RunApprovals(Approvals):
    """What one run may do; grants hold in its session."""

    store: Store
    session_id: str | None
    run_id: str
    edits: dict[str, str] = field(default_factory=dict[str, str])  # the arguments of changed calls, by the calls' ids
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
        whose = (owner, session_id or run_id)
        found = cls(rules, *whose, Grants(rules.clock), store=store, session_id=session_id, run_id=run_id)
        found.refresh = found._before_a_call
        if session_id is not None:
            found.grants = await found._stored()
        found._before = found.grants.lasting()
        for item in answered:
            found.take(item.call_id, item.tool, item.digest, item.answer)
            if item.answer is not None and item.answer.allowed and item.answer.arguments is not None:
                found.edits[item.call_id] = json.dumps(dict(item.answer.arguments), ensure_ascii=False)
        return found

    def history(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation with the calls as they were approved."""

        def edited(call: ToolCall) -> ToolCall:
            arguments = self.edits.get(call.id)
            return call if arguments is None else replace(call, function=FunctionCall(call.name, arguments))

        if not self.edits:
            return list(messages)
        return [replace(message, tool_calls=tuple(map(edited, message.tool_calls))) for message in messages]

    def with_notes(self, added: Sequence[Message]) -> tuple[Message, ...]:
        """The run's messages; results of changed calls note the new arguments, as the stored call has the old ones."""
        notes = {call_id: OTHER_ARGUMENTS.format(arguments=arguments) for call_id, arguments in self.edits.items()}
        return tuple(
            replace(message, content=f"{notes[message.tool_call_id]}\n\n{message.text()}")
            if message.tool_call_id in notes
            else message
            for message in added
        )

    async def ask(self, pending: Sequence[Pending], session_id: str, said: str) -> tuple[str, list[Approval]]:
        """Store a question about each of these calls; returns their text, to follow `said`, and the questions."""
        asked: list[Approval] = []
        for item in pending:
            card = item.card.displayed()
            card |= {"reason": plain(item.reason), "grant_description": plain(item.grant_description)}
            found = await self.store.approvals.ask(
                self.principal,
                call_id=item.call.id,
                tool=item.call.name,
                arguments=item.arguments,
                digest=item.digest,
                card=card,
                seconds=self.rules.open_seconds,
                session_id=session_id,
                run_id=self.run_id,
            )
            asked.append(found)
        return question(pending, [item.code for item in asked], self.rules.open_seconds, said), asked

    async def save_grants(self) -> None:
        """Store the grants that outlast this run."""
        for grant in self.grants.lasting():
            if grant not in self._before:
                seconds = grant.expires - self.rules.clock()
                data = {**grant.as_dict(), "description": grant.describe()}
                await self.store.grants.add(self.principal, data, session_id=self.session_id, seconds=seconds)

    async def _stored(self) -> Grants:
        stored = await self.store.grants.list(self.principal, self.session_id)
        return Grants.from_list([item.data for item in stored], self.rules.clock)

    async def _before_a_call(self) -> None:
        await self.store.runs.hold(self.run_id)
        if not self._before:
            return
        valid = (await self._stored()).lasting()
        for grant in [grant for grant in self._before if grant not in valid]:
            self._before.remove(grant)
            self.grants.revoke(grant)
