"""Notices that the model repeats a call whose result does not change."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

WARN_AT = 3
WITHDRAW_AT = 5


@dataclass(slots=True)
class RepeatGuard:
    """Counts equal calls with equal results during one turn; a call that writes starts every other count anew."""

    withdrawn: set[str] = field(default_factory=set[str])
    _counts: Counter[tuple[str, str, bytes]] = field(default_factory=Counter[tuple[str, str, bytes]])

    def noted(self, name: str, arguments: Mapping[str, Any], result: str, *, writes: bool) -> str:
        """The result as the model gets it: from the third equal one on with a warning."""
        key = (name, json.dumps(arguments, sort_keys=True, default=str), blake2b(result.encode()).digest())
        if writes:
            self._counts = Counter({key: self._counts[key]})
        self._counts[key] += 1
        count = self._counts[key]
        if count >= WITHDRAW_AT:
            self.withdrawn.add(name)
            return (
                f"{result}\n\n[{name} gave this same result {count} times; it is withdrawn for the rest of this turn.]"
            )
        if count >= WARN_AT:
            return f"{result}\n\n[The same call gave the same result {count} times. Use it, or call differently.]"
        return result
