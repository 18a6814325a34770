"""Decide about a call: by the rules, then by what outside text makes dangerous, then by grants, else by the user."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from task.permissions.decisions import (
    Allowed,
    CallRequest,
    Decision,
    Deferred,
    Denied,
    Effect,
    Gate,
    PermissionMode,
    WorkspaceAccess,
    refused_by_mode,
)
from task.permissions.facts import CallFacts
from task.permissions.grants import Grant, Grants, Scope
from task.permissions.icerc import ICERC, Brief
from task.permissions.policy import Policy, Rule
from task.permissions.programs import coverable, prefix_of
from task.permissions.risk import assessed, command_of

FREE_CHARACTERS = 200  # a search this short may leave a conversation that contains text from outside
_ASKING = frozenset({Effect.WRITE, Effect.EXECUTE, Effect.NETWORK})
_UNCHANGED = Allowed("policy")


@dataclass(frozen=True, slots=True)
class PolicyGate:
    """Decides about the calls of one conversation of one principal; `clock` returns Unix time.

    `refresh` removes from `grants` those that were revoked elsewhere.
    """

    policy: Policy
    grants: Grants
    mode: PermissionMode
    principal: str
    conversation: str
    clock: Callable[[], float]
    refresh: Callable[[], Awaitable[None]] | None = None

    async def decide(self, request: CallRequest) -> Decision:
        """Whether the call may run; no other decision can come between lookup and use of a grant."""
        if self.refresh is not None:
            await self.refresh()  # the only wait, in front of both
        facts = CallFacts(request)
        if denial := self.policy.denied(facts):
            return Denied(denial)
        if self.mode is PermissionMode.READ_ONLY and (refusal := refused_by_mode(self.mode, request)):
            return refusal
        if facts.unreachable:
            return Denied(facts.unreachable)
        reason = self._question(facts, self.policy.first(facts))
        if not reason:
            return _UNCHANGED
        exact = digest(facts.tool, request.arguments, self.policy, request.workspace)
        card = card_of(facts)
        commands = [command.words for command in facts.script.invocations] if _coverable(facts) else []
        tainted = request.context.tainted_beyond(facts.tool)
        found = self.grants.find(facts.tool, exact, self.principal, self.conversation, commands, tainted=tainted)
        if found is None:
            return Deferred(card, exact, reason, self._wider(facts, exact, 0).describe())
        if found.widens:
            self.grants.revoke(found)
            self.grants.add(self._wider(facts, exact, found.expires))
        return Allowed(found.describe(), card)

    def _question(self, facts: CallFacts, rule: Rule | None) -> str:
        if rule is None:
            return "no rule allows it"
        if rule.action == "ask":
            return f"a rule says to ask ({rule.describe()})"
        if self.mode is PermissionMode.ASK and facts.effects & _ASKING:
            return "this conversation asks before every call that writes, executes or contacts a server"
        if not rule.command and self.policy.restricts_commands(facts) and not facts.script.complete:
            return "a rule denies commands, and this command line could not be parsed completely"
        return "" if rule.trusted else exposure(facts)

    def _wider(self, facts: CallFacts, exact: str, expires: float) -> Grant:
        # "Always" covers the tool; for a command its first words, or exactly this one if they are too general.
        prefix = prefix_of(facts.script) if _coverable(facts) else ""
        scope: Scope = "prefix" if prefix else "call" if facts.command else "tool"
        return Grant(
            scope,
            facts.tool,
            self.principal,
            self.conversation,
            expires,
            digest=exact if scope == "call" else "",
            prefix=prefix,
            tainted=facts.request.context.tainted,
        )


def _coverable(facts: CallFacts) -> bool:
    return bool(facts.command) and not facts.leaving and coverable(facts.script)


@dataclass(slots=True)
class AnsweredGate:
    """Lets a gate decide, except about the calls the user has denied."""

    gate: Gate
    denials: dict[str, str]

    async def decide(self, request: CallRequest) -> Decision:
        reason = self.denials.pop(request.call.id, None)  # once: later calls may have the same id
        return Denied(reason) if reason is not None else await self.gate.decide(request)


def digest(tool: str, arguments: Mapping[str, Any], policy: Policy, workspace: WorkspaceAccess | None = None) -> str:
    """Identifies exactly this call under exactly this policy, in exactly this workspace."""
    parts = [tool, arguments, policy.fingerprint, *([workspace.root] if workspace is not None else [])]
    exact = json.dumps(parts, sort_keys=True, separators=(",", ":"), default=str)
    return sha256(exact.encode()).hexdigest()


def exposure(facts: CallFacts) -> str:
    """Why the call is dangerous while text from outside is in the conversation; empty if it is not."""
    effects = facts.effects
    if not (effects & {Effect.WRITE, Effect.NETWORK} or facts.command) or not facts.request.context.tainted:
        return ""
    if facts.confined:
        return ""  # nothing can leave the workspace, so an address in a file or command cannot leave this machine
    because = "the conversation contains text from outside, and "
    if effects >= {Effect.WRITE, Effect.NETWORK}:
        return f"{because}the call could change data on a server"
    if effects & {Effect.WRITE, Effect.EXECUTE} and facts.away:
        return f"{because}the call would access files outside the workspace"
    if facts.command and (facts.hosts or not facts.script.exact):
        return f"{because}the command would contact another machine, or is known only at run time"
    if not facts.urls_known:
        return f"{because}the model made up the address"
    if Effect.NETWORK in effects and facts.text_length - sum(map(len, facts.urls)) > FREE_CHARACTERS:
        return f"{because}the call would send more than {FREE_CHARACTERS} characters to a server"
    return ""


def card_of(facts: CallFacts) -> ICERC:
    """The card: intent and expected outcome in the model's words, the rest computed."""
    request = facts.request
    brief = request.brief
    intent = brief.intent or Brief.read(request.context.text_beside(request.call)).intent
    return ICERC(intent, command_of(facts), brief.expected_outcome, assessed(facts))
