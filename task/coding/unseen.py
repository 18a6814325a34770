"""Find what a run changed where the diff does not show it: folders that programs load code from, and git's settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LOADED = frozenset({"node_modules", ".venv", "__pycache__", ".tox", ".nox"})
OF_GIT = ("config", "config.worktree", "commondir", "hooks")  # by which git runs programs
MOST = 5
OF_PROGRAMS = "Changed where no diff shows it and undo does not reach: {}. Make it anew if you do not trust the run."
OF_REPOSITORIES = "Changed without a trace in the diff: {}. Git runs programs named there; look before you use git."


def unseen_changes(workspace: Path, since_ns: int) -> list[str]:
    """Sentences that name the places in which something has changed since that time; none if there are none."""
    programs, repositories = list[str](), list[str]()
    for here, below, files in _walked(workspace):
        for name in sorted(LOADED.intersection(below)):
            below.remove(name)
            if _has_changed([here / name], since_ns):
                programs.append(str((here / name).relative_to(workspace)))
        if ".git" in (*below, *files):
            below[:] = [name for name in below if name != ".git"]
            git = here / ".git"
            if _has_changed([git] if ".git" in files else [git / name for name in OF_GIT], since_ns):
                repositories.append(str(git.relative_to(workspace)))
    found = ((OF_PROGRAMS, programs), (OF_REPOSITORIES, repositories))
    return [sentence.format(_listed(places)) for sentence, places in found if places]


def _listed(places: list[str]) -> str:
    return ", ".join(places[:MOST]) + (f" and {len(places) - MOST} more" if len(places) > MOST else "")


def _has_changed(places: list[Path], since_ns: int) -> bool:
    return any(_changed_at(path) > since_ns for place in places for path in _all(place))


def _all(place: Path) -> Iterator[str]:
    yield str(place)
    for folder, below, files in _walked(place):
        yield from (os.path.join(folder, name) for name in (*below, *files))


def _walked(place: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    # As `os.walk`, which in Python 3.11 fails in trees that are deeper than functions may call each other.
    waiting = [place]
    while waiting:
        here = waiting.pop()
        below, files, links = list[str](), list[str](), set[str]()
        with suppress(OSError), os.scandir(here) as found:
            for entry in found:
                if entry.is_symlink():
                    links.add(entry.name)
                is_folder = os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()
                (below if is_folder else files).append(entry.name)
        yield here, below, files
        waiting += [here / name for name in below if name not in links]


def _changed_at(path: str) -> int:
    try:
        return os.lstat(path).st_ctime_ns  # which no program can set
    except OSError:
        return 0
