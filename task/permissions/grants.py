"""Grants: what a person has allowed, for how much, for whom, in which conversation, and until when."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, cast, get_args

Scope = Literal["call", "prefix", "tool", "session"]


@dataclass(frozen=True, slots=True)
class Grant:
    """One permission.

    A `call` grant fits the call with that `digest`, a `prefix` grant the tool's commands that begin with those words,
    a `tool` grant every call of the tool, a `session` grant every call. `expires` is a Unix time; `once`: it is spent
    by its first use. `widens`: the person said "always"; at its first use the gate adds the wider grant that the call's
    card named. `tainted`: it was given when text of others stood in the conversation already; a grant other than for
    one exact call, given before, does not hold after, unless all such text is the results of the granted tool itself.
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

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Grant:
        """The grant of `as_dict`.

        Raises:
            ValueError: it is none.
        """
        try:
            if data["scope"] not in get_args(Scope):
                raise ValueError("a grant is for a call, a prefix, a tool or a session")
            texts = {name: str(data[name]) for name in ("tool", "principal", "conversation", "digest", "prefix")}
            once, widens, tainted = (data[name] is True for name in ("once", "widens", "tainted"))
            scope, expires = cast("Scope", data["scope"]), float(data["expires"])
            return cls(scope=scope, expires=expires, once=once, widens=widens, tainted=tainted, **texts)
        except (KeyError, TypeError) as error:
            raise ValueError("this is not a grant") from error

    def told(self) -> str:
        """The grant as a person reads it."""
        match self.scope:
            case "call":
                return f"{self.tool}, exactly as shown{', once' if self.once else ''}"
            case "prefix":
                return f"{self.tool}: commands that begin with {self.prefix!r}"
            case "tool":
                return f"every call of {self.tool}"
            case "session":
                return "every call of every tool"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call in search of a grant: `prefixes` are the words of every command in it, empty where it has none.

    `tainted`: text of others stands in the conversation, `tainted_beyond`: also other text than the tool's results.
    """

    tool: str
    digest: str
    principal: str
    conversation: str
    prefixes: Sequence[Sequence[str]] = ()
    tainted: bool = False
    tainted_beyond: bool = False


@dataclass(slots=True)
class Grants:
    """The grants of a conversation, oldest first; `clock` gives Unix time."""

    clock: Callable[[], float]
    _grants: list[Grant] = field(default_factory=list[Grant])

    def add(self, grant: Grant) -> None:
        self._grants.append(grant)

    def find(self, wanted: Wanted) -> Grant | None:
        """The narrowest living grant that fits, the exact call's before all others; a grant for once is spent by it."""
        fitting = [grant for grant in self.list() if _fits(grant, wanted)]
        found = min(fitting, key=lambda grant: get_args(Scope).index(grant.scope), default=None)
        if found is not None and found.once:
            self._grants.remove(found)
        return found

    def list(self) -> list[Grant]:
        """The grants that still hold."""
        now = self.clock()
        return [grant for grant in self._grants if grant.expires > now]

    def revoke(self, grant: Grant) -> bool:
        """Take a grant back; False when it is not there (any more)."""
        if grant not in self._grants:
            return False
        self._grants.remove(grant)
        return True

    def as_list(self) -> list[dict[str, Any]]:
        """The living grants as JSON data."""
        return [grant.as_dict() for grant in self.list()]

    @classmethod
    def from_list(cls, data: Iterable[Mapping[str, Any]], clock: Callable[[], float]) -> Grants:
        """The grants of `as_list`.

        Raises:
            ValueError: one of them is none.
        """
        return cls(clock, [Grant.from_dict(item) for item in data])


def _fits(grant: Grant, wanted: Wanted) -> bool:
    if (grant.principal, grant.conversation) != (wanted.principal, wanted.conversation):
        return False
    if grant.scope == "call":
        return bool(grant.digest) and (grant.tool, grant.digest) == (wanted.tool, wanted.digest)
    if grant.scope == "session":
        return grant.tainted or not wanted.tainted
    if grant.tool != wanted.tool or (wanted.tainted_beyond and not grant.tainted):
        return False
    if grant.scope == "tool":
        return True
    words = grant.prefix.split()
    return bool(words and wanted.prefixes) and all(list(found[: len(words)]) == words for found in wanted.prefixes)
