"""One request's permissions: what was asked before, what its message decides, what may run, what is asked next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any
from uuid import uuid4

from task.approvals.claims import Claims, ProcessClaims
from task.approvals.commands import carried_out, command_of, lasting, listing, revoking_form
from task.approvals.questions import form_schema, question, title_of
from task.approvals.resuming import (
    ASK_AGAIN,
    EXPIRED,
    FOREIGN,
    TOO_LATE,
    USED,
    USED_BEFORE,
    AnsweredGate,
    decides_foreign,
    resumption,
)
from task.conversation.history import closed
from task.conversation.inputs import Incoming
from task.conversation.messages import Message, Role
from task.conversation.sinks import ChoiceSink
from task.conversation.state import TurnState, Waiting
from task.permissions.decisions import Gate, PermissionMode
from task.permissions.gate import PolicyGate
from task.permissions.grants import Grants
from task.permissions.icerc import fenced, shortened
from task.permissions.policy import DEFAULT_POLICY, Policy
from task.tools.base import BaseTool
from task.tools.toolbox import Pending
from task.utils.stage import StageProcessor

WAITING = " [waiting for your approval]"
ALLOWED_STAGE = "Permissions"


@dataclass(frozen=True, slots=True)
class Permissions:
    """The rules of an agent: its policy, how long a question stays open and a grant lasts, and who was first."""

    policy: Policy = DEFAULT_POLICY
    claims: Claims = field(default_factory=ProcessClaims)
    open_seconds: float = 3600
    grant_seconds: float = 86_400
    clock: Callable[[], float] = time


@dataclass(frozen=True, slots=True)
class Said:
    """An answer without a model; `state` where the turn leaves one, `form` where it offers buttons."""

    text: str
    state: TurnState | None = None
    form: dict[str, Any] | None = None


class Door:
    """The permissions of one request.

    `turns` is what the messages' states hold, by position; a state that is not there was not sealed for this person.
    `whose` are principal and conversation. `resumed` is the suspended turn that the last message decides about.
    """

    def __init__(
        self, rules: Permissions, incoming: Sequence[Incoming], turns: Mapping[int, TurnState], whose: tuple[str, str]
    ) -> None:
        before = turns.get(len(incoming) - 2)
        self.resumed = resumption(incoming, before)
        self._rules, self._incoming, self._whose = rules, incoming, whose
        self._foreign = decides_foreign(incoming, before)
        latest = turns[max(turns)] if turns else TurnState()
        self._references = latest.references
        self.grants = _grants(latest, rules.clock)
        self._granted = lasting(self.grants)

    async def said(self, api_key: str) -> Said | None:
        """The answer where no model has to be asked: to a command, or to an approval that cannot be accepted."""
        last = self._incoming[-1]
        command = command_of(last.text()) if last.role is Role.USER and not last.attachments else None
        if command is not None:
            text = carried_out(command, self.grants)
            return Said(text, self.state((), ()), revoking_form(lasting(self.grants)))
        if self._foreign:
            return Said(f"{FOREIGN} {ASK_AGAIN}")
        if self.resumed is None or not self.resumed.approves:
            return None
        turn = self.resumed.turn
        if turn.expires <= self._rules.clock():
            return Said(f"{EXPIRED} {ASK_AGAIN}", self._closing(TOO_LATE))
        if not await self._rules.claims.take(turn.turn, turn.expires, api_key):
            return Said(f"{USED} {ASK_AGAIN}", self._closing(USED_BEFORE))
        return None

    def gate(self, mode: PermissionMode) -> Gate:
        """What decides the calls of this request; what the person has approved is allowed from now on."""
        rules = self._rules
        gate = PolicyGate(rules.policy, self.grants, mode, *self._whose, rules.clock)
        if self.resumed is None:
            return gate
        self.resumed.grant(self.grants, self._whose, rules.clock() + rules.grant_seconds)
        return AnsweredGate(gate, self.resumed.denials())

    def show(self, choice: ChoiceSink) -> None:
        """Show what is always allowed in a stage, when that has just grown."""
        if lasting(self.grants) == self._granted:
            return
        stage = StageProcessor.open_stage(choice, ALLOWED_STAGE)
        stage.append_content(listing(lasting(self.grants)))
        StageProcessor.close_stage_safely(stage)

    def ask(self, pending: Sequence[Pending], tools: Mapping[str, BaseTool], choice: ChoiceSink) -> Said:
        """Show the waiting calls as stages; the question about them."""
        titles = [title_of(item, tools) for item in pending]
        for item, title in zip(pending, titles, strict=True):
            stage = StageProcessor.open_stage(choice, f"{title}{WAITING}")
            stage.append_content(f"## Request arguments:\n\n{fenced(shortened(item.card.command))}\n")
            StageProcessor.close_stage_safely(stage)
        return Said(question(pending, titles, self._rules.open_seconds), form=form_schema(titles))

    def state(
        self, history: Sequence[Message], pending: Sequence[Pending], references: Mapping[str, str] | None = None
    ) -> TurnState | None:
        """What the turn leaves behind; None where that is nothing new."""
        granted = lasting(self.grants)
        if not history and granted == self._granted:
            return None
        now = self._rules.clock()
        return TurnState(
            tuple(history),
            tuple(Waiting(item.call.id, item.digest) for item in pending),
            references if references is not None else self._references,
            uuid4().hex if pending else "",
            int(now + self._rules.open_seconds) if pending else 0,
            self.resumed.turn.turn if self.resumed is not None else "",
            tuple(grant.as_dict() for grant in granted),
        )

    def _closing(self, result: str) -> TurnState | None:
        turn = self.resumed.turn if self.resumed is not None else TurnState()
        return self.state(closed(turn.history, {waiting.call_id for waiting in turn.pending}, result), ())


def _grants(turn: TurnState, clock: Callable[[], float]) -> Grants:
    try:
        return Grants.from_list(turn.grants, clock)
    except ValueError:  # of another version of the product
        return Grants(clock)
