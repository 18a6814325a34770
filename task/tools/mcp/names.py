"""Names under which models may call the tools of servers that name them as they like."""

from __future__ import annotations

import re
from collections.abc import Collection
from hashlib import sha256

LONGEST = 64
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]+")


def model_name(tool: str, server: str, taken: Collection[str]) -> str:
    """A name of `[a-zA-Z0-9_-]{1,64}` that is not `taken`: the tool's own, else with the server's before it."""
    for candidate in (fit(tool), fit(f"{server}_{tool}")):
        if candidate not in taken:
            return candidate
    return fit(f"{server}_{tool}", always_marked=True)


def fit(name: str, *, always_marked: bool = False) -> str:
    """The name in the letters models may use; names that had to be cut stay apart by a mark."""
    cleaned = _UNFIT.sub("_", name).strip("_") or "tool"
    if len(cleaned) <= LONGEST and not always_marked:
        return cleaned
    mark = sha256(name.encode(errors="replace")).hexdigest()[:8]
    return f"{cleaned[: LONGEST - 9]}_{mark}"
