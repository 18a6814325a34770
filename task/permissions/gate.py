"""The gate: rules, then taint, then grants, then a person."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from task.permissions.decisions import (
    Allowed,
    CallRequest,
    Decision,
    Deferred,
    Denied,
    PermissionMode,
    refused_by_mode,
)
from task.permissions.effects import Effect
from task.permissions.facts import CallFacts, outside
from task.permissions.grants import Grant, Grants, Scope, Wanted
from task.permissions.icerc import ICERC, Brief
from task.permissions.policy import Policy, Rule
from task.permissions.programs import coverable, prefix_of
from task.permissions.risk import assessed, command_of

FREE_CHARACTERS = 200  # a search this short may leave a conversation in which others' text stands
_ASKING = frozenset({Effect.WRITE, Effect.EXECUTE, Effect.NETWORK})
_UNCHANGED = Allowed("policy")


@dataclass(frozen=True, slots=True)
class PolicyGate:
    """Decides the calls of one conversation of one principal; `clock` gives Unix time."""

    policy: Policy
    grants: Grants
    mode: PermissionMode
    principal: str
    conversation: str
    clock: Callable[[], float]

    async def decide(self, request: CallRequest) -> Decision:
        """Whether the call may run. It never waits: what was decided and what is done cannot be interleaved."""
        facts = CallFacts(request)
        if denial := self.policy.denied(facts):
            return Denied(denial)
        if refusal := refused_by_mode(self.mode, request):
            return refusal
        reason = self._question(facts, self.policy.first(facts))
        return self._asked(facts, reason) if reason else _UNCHANGED

    def _question(self, facts: CallFacts, rule: Rule | None) -> str:
        """Why a person has to be asked; empty when nobody has to."""
        if rule is None:
            return "no rule allows it"
        if rule.action == "ask":
            return f"a rule says to ask ({rule.told()})"
        if self.mode is PermissionMode.ASK and facts.effects & _ASKING:
            return "this conversation asks before every call that writes, executes or reaches a server"
        return "" if rule.trusted else exposure(facts, self.policy.workspace)

    def _asked(self, facts: CallFacts, reason: str) -> Decision:
        request = facts.request
        context = request.context
        tainted, beyond = context.tainted, context.tainted_beyond(facts.tool)
        exact = digest(facts.tool, request.arguments, self.policy)
        card = card_of(facts, self.policy.workspace)
        words = [command.words for command in facts.commands] if coverable(facts.script) else []
        found = self.grants.find(Wanted(facts.tool, exact, self.principal, self.conversation, words, tainted, beyond))
        if found is None:
            return Deferred(card, exact, reason, self._wider(facts, exact, 0).told())
        if found.widens:
            self.grants.revoke(found)
            self.grants.add(self._wider(facts, exact, found.expires))
        return Allowed(found.told(), card)

    def _wider(self, facts: CallFacts, exact: str, expires: float) -> Grant:
        """What "always" means for the call: commands that begin so, or where that says too little this very call."""
        prefix = prefix_of(facts.script) if facts.command else ""
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


def digest(tool: str, arguments: Mapping[str, Any], policy: Policy) -> str:
    """Stands for exactly this call under exactly this policy."""
    exact = json.dumps([tool, arguments, policy.fingerprint], sort_keys=True, separators=(",", ":"), default=str)
    return sha256(exact.encode()).hexdigest()


def exposure(facts: CallFacts, workspace: str) -> str:
    """What text of others in the conversation makes dangerous about the call; empty where nothing is."""
    effects = facts.effects
    if not (effects & {Effect.WRITE, Effect.NETWORK} or facts.command) or not facts.request.context.tainted:
        return ""
    because = "text from outside is in the conversation, and "
    if effects >= {Effect.WRITE, Effect.NETWORK}:
        return f"{because}the call could change something on a server"
    if effects & {Effect.WRITE, Effect.EXECUTE} and any(outside(path, workspace) for path in facts.paths):
        return f"{because}the call would reach outside the workspace"
    if facts.command and (facts.hosts or not facts.script.exact):
        return f"{because}the command would reach another machine, or is known only when it runs"
    if not facts.urls_known:
        return f"{because}the model made up the address"
    if Effect.NETWORK in effects and facts.text_length - sum(map(len, facts.urls)) > FREE_CHARACTERS:
        return f"{because}the call would send more than {FREE_CHARACTERS} characters out"
    return ""


def card_of(facts: CallFacts, workspace: str) -> ICERC:
    """The card: intent and expectation in the model's words, the rest computed."""
    request = facts.request
    brief = request.brief
    intent = brief.intent or Brief.read(request.context.said(request.call)).intent
    return ICERC(intent, command_of(facts), brief.expected_outcome, assessed(facts, workspace))
