"""Compare what a person was told would happen with what did."""

from __future__ import annotations

import re

from task.permissions.icerc import ICERC, words

_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)")


def mismatch(card: ICERC, result: str, *, failed: bool) -> str:
    """A sentence where the result is not what the card announced; empty where nothing speaks against it.

    Only what can be compared without understanding is: a call that failed, and numbers of which not one agrees.
    """
    expected = words(card.expected_outcome)
    if failed:
        return f"The call failed. Expected was: {expected or 'that it succeeds'}"
    announced, found = _numbers(card.expected_outcome) - _numbers(card.command), _numbers(result)
    if announced and found and not announced & found:
        told, got = ", ".join(sorted(announced)[:3]), ", ".join(sorted(found)[:3])
        return f"The outcome is not what was expected: announced {told}, the result says {got}."
    return ""


def _numbers(text: str) -> set[str]:
    return {found.replace(",", "") for found in _NUMBER.findall(text)}
