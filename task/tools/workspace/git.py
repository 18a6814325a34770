"""Keep the files by which git runs programs out of reach of written text and of commands."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from task.errors import ToolError

# What git would run or read settings from, absent ones too: in `.git`, and in the like of submodules and work trees.
GIT_INTERNALS = ("hooks", "config", "config.worktree", "commondir", "info")
_FILES = frozenset({".git", ".gitattributes", ".gitmodules"})
_PARTS_OF_A_REPOSITORY = ("head", "objects", "refs")
# Other systems' file names in which git sees its own: HFS+ ignores these characters, NTFS dots and spaces at the end.
_IGNORABLE = re.compile("[\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufeff]|(?<![ .])[ .]+$|::?\\$.*$")


def check_git(root: Path, parts: Sequence[str]) -> None:
    """Check that writing this path (its parts below `root`) cannot make git run a program.

    Raises:
        ToolError: it belongs to git, or its folder is or would become a repository's own.
    """
    for part in parts:
        plain = _IGNORABLE.sub("", part).casefold()
        if plain in _FILES or plain == "git~1":
            raise ToolError(f"{part} belongs to git and is not written as a file")
    folder = root
    for part in parts:
        # Git takes every folder with these three for a repository, and runs what its config says.
        if all(name == part.casefold() or _has(folder, name) for name in _PARTS_OF_A_REPOSITORY):
            raise ToolError("its folder is a git repository's own and is not written as files")
        folder = folder / part


def _has(folder: Path, name: str) -> bool:
    return os.path.lexists(folder / name) or (name == "head" and os.path.lexists(folder / "HEAD"))


def protected_paths(root: Path) -> list[str]:
    """The paths of the workspace's repository by which git, started by the user later, would run programs."""
    git = root / ".git"
    if git.is_symlink() or not git.is_dir():
        return [str(git)]  # where there is none, a command must not make one that lies in wait for the user's git
    return [str(folder / name) for folder in _git_folders(git) for name in GIT_INTERNALS]


def _git_folders(git: Path) -> Iterator[Path]:
    """Git's folders of a repository; a submodule's is as deep in `modules` as its name has parts."""
    yield git
    waiting = [git / "modules", git / "worktrees"]
    while waiting:
        folder = waiting.pop()
        if folder.is_symlink() or not folder.is_dir():
            continue
        # By what is protected: a command could have removed the rest.
        if any(os.path.lexists(folder / name) for name in ("config", "commondir")):
            yield folder
            waiting += [folder / "modules", folder / "worktrees"]
        else:
            with suppress(OSError):
                waiting += folder.iterdir()
