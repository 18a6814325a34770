"""Make the gate's policy from the settings."""

from __future__ import annotations

from task.approvals.door import Permissions
from task.permissions.effects import Effect
from task.permissions.policy import DEFAULT_RULES, Policy, Rule
from task.settings import Settings
from task.settings.permissions import RuleSettings


def policy_of(settings: Settings) -> Policy:
    """The rules of the settings, then the product's own."""
    chosen = settings.permissions
    rules = [rule_of(rule) for rule in chosen.rules]
    rules += DEFAULT_RULES if chosen.default_rules else ()
    return Policy(tuple(rules), only=frozenset(chosen.tools) if chosen.tools is not None else None)


def permissions_of(settings: Settings) -> Permissions:
    """What the DIAL front door needs to ask, and how long an answer holds."""
    chosen = settings.permissions
    return Permissions(
        policy_of(settings), open_seconds=chosen.open_minutes * 60, grant_seconds=chosen.grant_hours * 3600
    )


def rule_of(rule: RuleSettings) -> Rule:
    effects = frozenset(map(Effect, rule.effects)) if rule.effects is not None else None
    return Rule(rule.action, rule.tool, effects, rule.path, rule.command, rule.host, rule.known_url, rule.trusted)
