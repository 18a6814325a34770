"""What the gate is asked and what it answers, and the gate that asks nothing."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from task.conversation.messages import ToolCall, frozen_data
from task.permissions.icerc import ICERC, Brief
from task.permissions.taint import ContextView


class Effect(StrEnum):
    """What a tool does to the world, as the gate's rules name it."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    NETWORK = "network"


@dataclass(frozen=True, slots=True)
class WorkspaceAccess:
    """What a call of a workspace tool names: `root` is the workspace's real path, `paths` are relative to it.

    A path that leads out of the workspace is absolute, or begins with `..`.
    """

    root: str
    paths: tuple[str, ...] = ()


@frozen_data
class CallRequest:
    """A call with its parsed arguments, its tool's effects, its conversation, and the model's own brief of it.

    `names` are the arguments that the tool's schema declares. `workspace` is set for the tools that work in a workspace
    only, `offered_by` for those of a server.
    """

    call: ToolCall
    arguments: dict[str, object]
    effects: frozenset[Effect]
    context: ContextView = field(default_factory=ContextView)
    brief: Brief = field(default_factory=Brief)
    workspace: WorkspaceAccess | None = None
    names: frozenset[str] = frozenset()
    offered_by: str = ""


@frozen_data
class Allowed:
    """The call runs. `by` names the rule or grant; `card` is what the user approved, if asked."""

    by: str = ""
    card: ICERC | None = None


@frozen_data
class Denied:
    """The call does not run; the reason goes to the model."""

    reason: str


@frozen_data
class Deferred:
    """The user has to decide: the call stays pending and the run is suspended.

    `digest` identifies exactly this call under exactly this policy: approving it is a `Grant("call", …, digest)`,
    approving it for good the same grant with `widens`. `grant_description` says what the latter would cover.
    """

    card: ICERC
    digest: str
    reason: str = ""
    grant_description: str = ""


Decision = Allowed | Denied | Deferred


class Gate(Protocol):
    async def decide(self, request: CallRequest) -> Decision: ...


class PermissionMode(StrEnum):
    """How much the tools may do in a conversation; the user chooses it in the deployment's configuration."""

    DEFAULT = "default"
    ASK = "ask"
    READ_ONLY = "read_only"


class OpenGate:
    """Allows every call."""

    async def decide(self, request: CallRequest) -> Decision:
        return Allowed()
