"""The words of the gate: the question put to it, its three answers, and the gate that only knows modes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from task.conversation.messages import ToolCall
from task.permissions.effects import Effect as Effect
from task.permissions.effects import Origin as Origin
from task.permissions.icerc import ICERC, Brief
from task.permissions.taint import ContextView


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call with its parsed arguments, the effects its tool declares, and the conversation it was made in.

    `brief` is what the model said of the call.
    """

    call: ToolCall
    arguments: dict[str, Any]
    effects: frozenset[Effect]
    context: ContextView = field(default_factory=ContextView)
    brief: Brief = field(default_factory=Brief)


@dataclass(frozen=True, slots=True)
class Allowed:
    """The call runs. `by` names the rule or grant; `card` is what a person has agreed to, where one was asked."""

    by: str = ""
    card: ICERC | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """The call does not run; the reason goes to the model."""

    reason: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """A person has to decide: the call stays pending and the run is suspended.

    `digest` stands for exactly this call under exactly this policy: approving it is a `Grant("call", …, digest)`,
    approving it for good the same grant with `widens`. `grant_told` is what that would cover, as a person reads it.
    """

    card: ICERC
    digest: str
    reason: str = ""
    grant_told: str = ""


Decision = Allowed | Denied | Deferred


class Gate(Protocol):
    async def decide(self, request: CallRequest) -> Decision: ...


class PermissionMode(StrEnum):
    """How much a conversation lets the tools do; a choice of the user in the configuration of the deployment."""

    DEFAULT = "default"
    ASK = "ask"
    READ_ONLY = "read_only"


def refused_by_mode(mode: PermissionMode, request: CallRequest) -> Denied | None:
    """Read-only refuses what writes or executes."""
    forbidden = request.effects & {Effect.WRITE, Effect.EXECUTE}
    if mode is not PermissionMode.READ_ONLY or not forbidden:
        return None
    return Denied(f"this conversation is read-only and {request.call.name} would {' and '.join(sorted(forbidden))}")


@dataclass(frozen=True, slots=True)
class ModeGate:
    """Allows every call, or in read-only mode every call that neither writes nor executes."""

    mode: PermissionMode = PermissionMode.DEFAULT

    async def decide(self, request: CallRequest) -> Decision:
        return refused_by_mode(self.mode, request) or Allowed()
