"""The rules by which a person is asked, and what late and refused answers are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import time

from task.approvals.claims import Claims, ProcessClaims
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
