"""Grants: what a user has allowed, for whom, in which conversation, and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

Scope = Literal["call", "prefix", "tool"]  # from the narrowest to the widest


@dataclass(frozen=True, slots=True)
class Grant:
    """One permission.

    A `call` grant covers the call with that `digest`, a `prefix` grant the tool's commands that begin with those words,
    a `tool` grant every call of the tool. `expires` is Unix time; `once`: its first use consumes it. `widens`: the
    user chose "always"; at the first use the gate adds the wider grant that the card described. `tainted`: text from
    outside was already in the conversation; a wider grant from before it is void afterwards, unless all of that text
    is results of the granted tool.
    """

    scope: Scope
    tool: str
    principal: str
    conversation: str
    expires: float
    digest: str = ""
    prefix: str = ""
    once: bool = False
    widens: bool = False
    tainted: bool = False

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def covers(self, digest: str, commands: Sequence[Sequence[str]], *, tainted: bool) -> bool:
        """Whether it covers a call of its tool in its conversation; see `Grants.find`."""
        if self.scope == "call":
            return bool(self.digest) and self.digest == digest
        if tainted and not self.tainted:
            return False
        words = self.prefix.split()
        begins = (list(command[: len(words)]) == words for command in commands)
        return self.scope == "tool" or (bool(words and commands) and all(begins))

    def describe(self) -> str:
        """What the grant covers, for users."""
        match self.scope:
            case "call":
                return f"{self.tool}, exactly as shown{', once' if self.once else ''}"
            case "prefix":
                return f"{self.tool}: commands that begin with {self.prefix!r}"
            case "tool":
                return f"every call of {self.tool}"


_LIST = TypeAdapter(list[Grant])


@dataclass(slots=True)
class Grants:
    """The grants of a conversation, oldest first; `clock` returns Unix time."""

    clock: Callable[[], float]
    _grants: list[Grant] = field(default_factory=list[Grant])

    def add(self, grant: Grant) -> None:
        self._grants.append(grant)

    def find(
        self,
        tool: str,
        digest: str,
        principal: str,
        conversation: str,
        commands: Sequence[Sequence[str]] = (),
        *,
        tainted: bool = False,
    ) -> Grant | None:
        """The narrowest valid grant for a call; one for a single use is consumed.

        `commands` are the words of every command in the call, `tainted`: text from outside other than the tool's own
        results is in the conversation.
        """
        whose = (principal, conversation)
        fitting = [
            grant
            for grant in self.list()
            if (grant.principal, grant.conversation) == whose
            and grant.tool == tool
            and grant.covers(digest, commands, tainted=tainted)
        ]
        found = min(fitting, key=lambda grant: get_args(Scope).index(grant.scope), default=None)
        if found is not None and found.once:
            self._grants.remove(found)
        return found

    def list(self) -> list[Grant]:
        """The grants that have not expired."""
        now = self.clock()
        return [grant for grant in self._grants if grant.expires > now]

    def lasting(self) -> list[Grant]:
        """The grants that outlive the turn in which they were given."""
        return list(dict.fromkeys(grant for grant in self.list() if not grant.once))

    def revoke(self, grant: Grant) -> bool:
        """Remove a grant; False if it is not there."""
        if grant not in self._grants:
            return False
        self._grants.remove(grant)
        return True

    @classmethod
    def from_list(cls, data: Iterable[Mapping[str, Any]], clock: Callable[[], float]) -> Grants:
        """The grants of their `as_dict`s.

        Raises:
            ValueError: an item is not a grant.
        """
        return cls(clock, _LIST.validate_python(data))
