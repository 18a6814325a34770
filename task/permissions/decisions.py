"""The words of the gate: effects of a tool, the question put to the gate, and its three answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from task.conversation.messages import ToolCall


class Effect(StrEnum):
    """What a tool does to the world; the gate's rules speak of these."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call with its parsed arguments and the effects its tool declares."""

    call: ToolCall
    arguments: dict[str, Any]
    effects: frozenset[Effect]


@dataclass(frozen=True, slots=True)
class Allowed:
    pass


@dataclass(frozen=True, slots=True)
class Denied:
    """The call does not run; the reason goes to the model."""

    reason: str


@dataclass(frozen=True, slots=True)
class Deferred:
    """Nobody could be asked now: the call stays pending and the run is suspended."""

    reason: str = ""


Decision = Allowed | Denied | Deferred


class Gate(Protocol):
    async def decide(self, request: CallRequest) -> Decision: ...


class PermissionMode(StrEnum):
    """How much a conversation lets the tools do; a choice of the user in the configuration of the deployment."""

    DEFAULT = "default"
    READ_ONLY = "read_only"


@dataclass(frozen=True, slots=True)
class ModeGate:
    """Allows every call, or in read-only mode every call that neither writes nor executes."""

    mode: PermissionMode = PermissionMode.DEFAULT

    async def decide(self, request: CallRequest) -> Decision:
        forbidden = request.effects & {Effect.WRITE, Effect.EXECUTE}
        if self.mode is PermissionMode.READ_ONLY and forbidden:
            return Denied(f"this conversation is read-only and {request.call.name} would {' and '.join(forbidden)}")
        return Allowed()
