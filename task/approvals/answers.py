"""What a person's answers mean for the gate: approved calls are granted once, denied calls get the person's reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import time

from task.approvals.claims import Claims, ProcessClaims
from task.permissions.decisions import CallRequest, Decision, Denied, Gate, PermissionMode
from task.permissions.gate import PolicyGate
from task.permissions.grants import Grant, Grants
from task.permissions.policy import DEFAULT_POLICY, Policy

DENIED = "the user denied it"
EXPIRED = "This approval came too late: the question is no longer open. Nothing has run."


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """The policy, how long a question stays open and a grant lasts, and who was first to answer."""

    policy: Policy = DEFAULT_POLICY
    claims: Claims = field(default_factory=ProcessClaims)
    open_seconds: float = 3600
    grant_seconds: float = 86_400
    clock: Callable[[], float] = time


@dataclass(frozen=True, slots=True)
class PriorDecisions:
    """What a person decided before a turn starts: the conversation's grants, and denied calls with their reasons.

    `principal` and `conversation` say for whom and where grants hold; `denials` are by the calls' ids.
    """

    grants: Grants
    principal: str
    conversation: str
    denials: Mapping[str, str] = field(default_factory=dict[str, str])

    def gate(self, rules: ApprovalRules, mode: PermissionMode) -> Gate:
        """The gate that decides the calls of the turn."""
        gate = PolicyGate(rules.policy, self.grants, mode, self.principal, self.conversation, rules.clock)
        return AnsweredGate(gate, dict(self.denials)) if self.denials else gate


@dataclass(slots=True)
class AnsweredGate:
    """Lets a gate decide, except about the calls a person has denied."""

    gate: Gate
    denials: dict[str, str]

    async def decide(self, request: CallRequest) -> Decision:
        reason = self.denials.pop(request.call.id, None)  # once: later calls may have the same id
        return Denied(reason) if reason is not None else await self.gate.decide(request)


def lasting(grants: Grants) -> list[Grant]:
    """The grants that outlive the turn in which they were given."""
    return list(dict.fromkeys(grant for grant in grants.list() if not grant.once))
