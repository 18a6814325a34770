"""What a tool does to the world, and who wrote its results."""

from __future__ import annotations

from enum import StrEnum


class Effect(StrEnum):
    """What a tool does to the world, as the gate's rules name it."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    NETWORK = "network"


class Origin(StrEnum):
    """Who wrote a tool's result: computed by us, made by code or a model, or copied from outside."""

    OWN = "own"
    MADE = "made"
    OUTSIDE = "outside"


def origin_of(effects: frozenset[Effect]) -> Origin:
    """The default origin of a tool's results: only a tool that does nothing but compute gives our own."""
    if not effects:
        return Origin.OWN
    return Origin.MADE if effects & {Effect.WRITE, Effect.EXECUTE} else Origin.OUTSIDE
