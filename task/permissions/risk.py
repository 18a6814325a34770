"""How much harm a call could do, computed from the parsed call and never from what the model says of it."""

from __future__ import annotations

import json

from task.permissions.effects import Effect
from task.permissions.facts import CallFacts
from task.permissions.icerc import Level, RiskAssessment
from task.permissions.visible import tricks


def command_of(facts: CallFacts) -> str:
    """What will be done, exactly: the command line, or the tool with its arguments."""
    if facts.command:
        return facts.command
    arguments = facts.request.arguments
    lines = [f"{name} = {_value(value)}" for name, value in arguments.items()]
    return "\n".join([facts.tool, *lines])


def assessed(facts: CallFacts) -> RiskAssessment:
    """Level, scope and details of the call."""
    details = [f"the call holds {trick}" for trick in tricks(command_of(facts))]
    details += [f"host: {host}" for host in facts.hosts]
    details += [f"path: {path}" for path in facts.paths]
    level: Level = "high" if tricks(command_of(facts)) else _level(facts.effects)
    return RiskAssessment(level, _scope(facts.effects), "\n".join(details))


def _level(effects: frozenset[Effect]) -> Level:
    return "medium" if effects & {Effect.WRITE, Effect.EXECUTE} else "low"


def _scope(effects: frozenset[Effect]) -> str:
    does = {
        Effect.READ: "reads",
        Effect.WRITE: "writes or changes something",
        Effect.EXECUTE: "runs code",
        Effect.NETWORK: "reaches a server outside",
    }
    return ", ".join(text for effect, text in does.items() if effect in effects) or "computes only"


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
