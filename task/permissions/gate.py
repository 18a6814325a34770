"""Decide about a call: by rules, then what outside text makes dangerous, then grants, else the user."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Literal, get_args

from pydantic import TypeAdapter

from task.conversation.inner import inner
from task.conversation.messages import ToolCall, frozen_data
from task.permissions.decisions import (
    Allowed,
    CallRequest,
    Decision,
    Deferred,
    Denied,
    Effect,
    PermissionMode,
    WorkspaceAccess,
)
from task.permissions.facts import FREE_CHARACTERS, CallFacts
from task.permissions.icerc import ICERC, Brief
from task.permissions.policy import Policy, Rule
from task.permissions.programs import REACHING, covered, kind_of, prefix_of
from task.permissions.risk import assessed, command_of
from task.permissions.shell import ADVICE

Scope = Literal["call", "prefix", "tool"]  # from the narrowest to the widest


@dataclass(frozen=True, slots=True)
class Grant:
    """One permission.

    A `call` grant covers the call with that `digest`, a `prefix` grant the tool's commands that begin with those words,
    a `tool` grant every call of the tool. `expires` is Unix time; `once`: its first use consumes it. `widens`: the
    user chose "always"; at the first use the gate adds the wider grant that the card described. `tainted`: text from
    outside was already in the conversation, `prompted`: in its prompt; a wider grant from before it is void afterwards,
    unless all of that text is results of the granted tool. `offered_by`: the server whose tool it is.
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
    prompted: bool = False
    offered_by: str = ""

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def covers(
        self, digest: str, commands: Sequence[Sequence[str]], *, tainted: bool, prompted: bool, offered_by: str = ""
    ) -> bool:
        """Whether it covers a call of its tool in its conversation; see `Grants.find`."""
        if self.scope == "call":
            return bool(self.digest) and self.digest == digest
        if self.offered_by != offered_by or ((tainted or (prompted and not self.prompted)) and not self.tainted):
            return False
        words = self.prefix.split()
        begins = (list(command[: len(words)]) == words for command in commands)
        return self.scope == "tool" or (bool(words and commands) and all(begins))

    def describe(self) -> str:
        """What the grant covers, for users."""
        if self.scope == "tool":
            return f"every call of {self.tool}"
        if self.scope == "prefix":
            return f"{self.tool}: commands that begin with {self.prefix!r}"
        return f"{self.tool}, exactly as shown{', once' if self.once else ''}"


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
        prompted: bool = False,
        offered_by: str = "",
    ) -> Grant | None:
        """The narrowest valid grant for a call; one for a single use is consumed.

        `commands` are the words of every command in the call, `tainted`: text from outside other than the tool's own
        results is in the conversation, `prompted`: it is in the prompt.
        """
        fitting = [
            grant
            for grant in self.list()
            if (grant.tool, grant.principal, grant.conversation) == (tool, principal, conversation)
            and grant.covers(digest, commands, tainted=tainted, prompted=prompted, offered_by=offered_by)
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
        known = grant in self._grants
        if known:
            self._grants.remove(grant)
        return known

    @classmethod
    def from_list(cls, data: Iterable[Mapping[str, object]], clock: Callable[[], float]) -> Grants:
        """The grants of their `as_dict`s.

        Raises:
            ValueError: an item is not a grant.
        """
        return cls(clock, _LIST.validate_python(data))


_ASKING = frozenset({Effect.WRITE, Effect.EXECUTE, Effect.NETWORK})


@frozen_data
class PolicyGate:
    """Decides about the calls of one conversation of one principal.

    `refresh` removes from `grants` those that were revoked elsewhere; `denials` are the user's, by the calls' ids.
    `refusal` says why a call does not run whatever the rules say, if it has a reason. `within` is the call for which a
    sub-agent makes these: their ids are unique there.
    """

    policy: Policy
    grants: Grants
    mode: PermissionMode
    principal: str
    conversation: str
    refresh: Callable[[], Awaitable[None]] | None = None
    denials: dict[str, str] = field(default_factory=dict[str, str])
    refusal: Callable[[CallRequest], str] | None = None
    within: ToolCall | None = None

    async def decide(self, request: CallRequest) -> Decision:
        """Whether the call may run; no other decision can come between lookup and use of a grant."""
        called = request.call.id if self.within is None else inner(self.within, request.call).id
        if (denial := self.denials.pop(called, None)) is not None:  # once: later calls may have the same id
            return Denied(denial)
        if self.refresh is not None:
            await self.refresh()  # the only wait, in front of both
        facts = CallFacts(request)
        if denial := self.policy.denied(facts) or (self.refusal(request) if self.refusal is not None else ""):
            return Denied(denial)
        forbidden = facts.effects & {Effect.WRITE, Effect.EXECUTE}
        if self.mode is PermissionMode.READ_ONLY and forbidden:
            return Denied(f"this conversation is read-only and {facts.tool} would {' and '.join(sorted(forbidden))}")
        if facts.unreachable:
            return Denied(facts.unreachable)
        reason = self._question(facts, self.policy.first(facts))
        if not reason:
            return Allowed("policy")
        exact = digest(facts.tool, request.arguments, self.policy, request.workspace, request.offered_by)
        card = card_of(facts)
        commands = [command.words for command in facts.script.commands] if _coverable(facts) else []
        outside = {"tainted": request.context.tainted_beyond(facts.tool), "prompted": request.context.prompted}
        whose = self.principal, self.conversation
        found = self.grants.find(facts.tool, exact, *whose, commands, **outside, offered_by=request.offered_by)
        if found is None:
            return Deferred(card, exact, reason, self._wider(facts, exact, 0).describe())
        if found.widens:
            self.grants.revoke(found)
            self.grants.add(self._wider(facts, exact, found.expires))
        return Allowed(found.describe(), card)

    def _question(self, facts: CallFacts, rule: Rule | None) -> str:
        if rule is None:
            script = facts.script
            return "no rule allows it" if script.plain else f"it is not a plain line ({script.why}). {ADVICE}"
        if rule.action == "ask":
            return f"a rule says to ask ({rule.describe()})"
        if self.mode is PermissionMode.ASK and facts.effects & _ASKING:
            return "this conversation asks before every call that writes, executes or contacts a server"
        if not rule.command and self.policy.restricts_commands(facts):
            script = facts.script
            if facts.unread or not script.plain or "runs" in map(kind_of, script.commands):
                return "a rule denies commands, and what this line runs is not known"
        return "" if rule.trusted else exposure(facts)

    def _wider(self, facts: CallFacts, exact: str, expires: float) -> Grant:
        # "Always" covers the tool; for a command its first words, or exactly this one if they are too general.
        prefix = prefix_of(facts.script) if _coverable(facts) else ""
        scope: Scope = "prefix" if prefix else "call" if facts.command or facts.unread else "tool"
        view, exact = facts.request.context, exact if scope == "call" else ""
        outside = {"tainted": view.tainted_beyond(""), "prompted": view.prompted}
        whose = self.principal, self.conversation
        offered_by = facts.request.offered_by
        return Grant(scope, facts.tool, *whose, expires, exact, prefix, **outside, offered_by=offered_by)


def _coverable(facts: CallFacts) -> bool:
    known = bool(facts.command) and not (facts.unread or facts.leaving or facts.of_git)
    return known and covered(facts.script)


def digest(
    tool: str, arguments: object, policy: Policy, workspace: WorkspaceAccess | None = None, server: str = ""
) -> str:
    """Identifies exactly this call under exactly this policy, in exactly this workspace or of exactly this server."""
    places = [place for place in (workspace.root if workspace is not None else "", server) if place]
    exact = json.dumps(
        [tool, arguments, policy.fingerprint, *places], sort_keys=True, separators=(",", ":"), default=str
    )
    return sha256(exact.encode()).hexdigest()


def exposure(facts: CallFacts) -> str:
    """Why the call is dangerous while text from outside is in the conversation; empty if it is not."""
    effects = facts.effects
    if not facts.request.context.tainted:
        return ""
    if not (effects & {Effect.WRITE, Effect.NETWORK} or facts.command or facts.unread):
        return ""
    if facts.confined:
        return ""  # nothing can leave the workspace, so an address in a file or command cannot leave this machine
    because = "the conversation contains text from outside, and "
    if effects >= {Effect.WRITE, Effect.NETWORK}:
        return f"{because}the call could change data on a server"
    if effects & {Effect.WRITE, Effect.EXECUTE} and facts.away:
        return f"{because}the call would access files outside the workspace"
    reaching = not REACHING.isdisjoint(map(kind_of, facts.script.commands))
    if facts.unread or (facts.command and (facts.hosts or reaching)):
        return f"{because}the command would contact another machine, or it is not a plain line"
    if not facts.urls_known:
        return f"{because}the model made up the address"
    if Effect.NETWORK in effects and facts.free_text > FREE_CHARACTERS:
        return f"{because}the call would send more than {FREE_CHARACTERS} characters to a server"
    return ""


def card_of(facts: CallFacts) -> ICERC:
    """The card: intent and expected outcome in the model's words, the rest computed."""
    request = facts.request
    brief = request.brief
    intent = brief.intent or Brief.read(request.context.text_beside(request.call)).intent
    return ICERC(intent, command_of(facts), brief.expected_outcome, assessed(facts))
