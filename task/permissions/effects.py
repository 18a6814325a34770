"""What a tool does to the world, and whose words its results are."""

from __future__ import annotations

from enum import StrEnum


class Effect(StrEnum):
    """What a tool does to the world; the gate's rules speak of these."""

    READ = "read"
    WRITE = "write"
    EXECUTE = "execute"
    NETWORK = "network"


class Origin(StrEnum):
    """Whose words a tool's result is: computed by us, made by code or a model, or copied from outside."""

    OWN = "own"
    MADE = "made"
    OUTSIDE = "outside"


def origin_of(effects: frozenset[Effect]) -> Origin:
    """The origin of results of a tool that does not say otherwise: only what does nothing but compute is ours."""
    if not effects:
        return Origin.OWN
    return Origin.MADE if effects & {Effect.WRITE, Effect.EXECUTE} else Origin.OUTSIDE
