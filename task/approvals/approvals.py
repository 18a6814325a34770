"""What the calls of one conversation may do: its grants, and the answers to the questions that were just asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from task.approvals.rules import ApprovalRules
from task.conversation.replies import Answer
from task.permissions.decisions import Gate, PermissionMode
from task.permissions.gate import AnsweredGate, PolicyGate
from task.permissions.grants import Grant, Grants

DENIED = "the user denied it"
EXPIRED = "This approval came too late: the question is no longer open. Nothing has run."


@dataclass(slots=True)
class Approvals:
    """What a turn starts from. Grants are kept in the hidden state of a chat (`DialApprovals`), in the store
    (`RunApprovals`), or as long as the object lives.

    `principal` and `conversation` say for whom and where grants hold; `denials` are by the calls' ids. `refresh` is
    awaited before each decision, and removes grants that were revoked elsewhere.
    """

    rules: ApprovalRules
    principal: str
    conversation: str
    grants: Grants
    denials: dict[str, str] = field(default_factory=dict[str, str])
    refresh: Callable[[], Awaitable[None]] | None = None

    @classmethod
    def none(cls, rules: ApprovalRules, principal: str = "", conversation: str = "") -> Approvals:
        """Approvals of a conversation in which nothing was answered yet."""
        return cls(rules, principal, conversation, Grants(rules.clock))

    def take(self, call_id: str, tool: str, digest: str, answer: Answer | None) -> None:
        """Let the answer about this call count, once; None: its question has expired, which means no.

        What is to be allowed always, the gate widens when the call runs.
        """
        if answer is None:
            self.denials[call_id] = EXPIRED.removesuffix(".")
        elif not answer.allowed:
            said = f"{DENIED}: {answer.reason}" if answer.reason else DENIED
            self.denials[call_id] = said if answer.by_user else answer.reason
        else:
            expires = self.rules.clock() + self.rules.grant_seconds
            exact, whose = answer.grant or digest, (self.principal, self.conversation)
            self.grants.add(Grant("call", tool, *whose, expires, exact, once=True, widens=answer.always))

    def gate(self, mode: PermissionMode) -> Gate:
        """The gate that decides the calls of the turn."""
        rules = self.rules
        gate = PolicyGate(rules.policy, self.grants, mode, self.principal, self.conversation, rules.clock, self.refresh)
        return AnsweredGate(gate, dict(self.denials)) if self.denials else gate
