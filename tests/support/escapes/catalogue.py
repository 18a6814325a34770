"""The escape list itself: name, what is tried, and the function that tries it."""

from collections.abc import Callable

from tests.support.escapes import (
    exhaustion,
    files,
    ipc,
    kernel,
    limits,
    network,
    processes,
    reading,
    signals,
)
from tests.support.escapes.world import World

Attack = Callable[[World], str]

GROUPS = (reading, files, processes, signals, network, kernel, limits, ipc)
QUICK: dict[str, Attack] = {attack.__name__: attack for group in GROUPS for attack in group.ATTACKS}
ENDLESS: dict[str, Attack] = {attack.__name__: attack for attack in exhaustion.ATTACKS}


def about(name: str) -> str:
    """What the attack tries, in words."""
    return ((QUICK | ENDLESS)[name].__doc__ or name).strip()
