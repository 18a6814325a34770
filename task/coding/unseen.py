"""Find what a run changed in folders that programs load code from, and that neither diff nor undo includes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

LOADED = frozenset({"node_modules", ".venv", "__pycache__", ".tox", ".nox"})
MOST = 5
NOTE = "Changed where no diff shows it and undo does not reach: {folders}. Make {it} anew if you do not trust the run."


def unseen_changes(workspace: Path, since_ns: int) -> str:
    """A sentence that names the folders in which something has changed since that time; empty if there are none."""
    found = list(_changed(workspace, since_ns))
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return NOTE.format(folders=", ".join(found[:MOST]) + more, it="them" if len(found) > 1 else "it") if found else ""


def _changed(workspace: Path, since_ns: int) -> Iterator[str]:
    for folder, below, _ in os.walk(workspace):
        for name in sorted(LOADED.intersection(below)):
            below.remove(name)
            place = Path(folder, name)
            if any(_changed_at(path) > since_ns for path in _all(place)):
                yield str(place.relative_to(workspace))


def _all(place: Path) -> Iterator[str]:
    yield str(place)
    for folder, below, files in os.walk(place):
        yield from (os.path.join(folder, name) for name in (*below, *files))


def _changed_at(path: str) -> int:
    try:
        return os.lstat(path).st_ctime_ns  # which no program can set
    except OSError:
        return 0
