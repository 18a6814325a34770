"""Keep the files by which git runs programs out of reach of written text."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from task.errors import ToolError

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
        if _plain(part) in _FILES:
            raise ToolError(f"{part} belongs to git and is not written as a file")
    folder = root
    for part in parts:
        # Git takes every folder with these three for a repository, and runs what its config says.
        if all(name == part.casefold() or _has(folder, name) for name in _PARTS_OF_A_REPOSITORY):
            raise ToolError("its folder is a git repository's own and is not written as files")
        folder = folder / part


def _has(folder: Path, name: str) -> bool:
    return os.path.lexists(folder / name) or (name == "head" and os.path.lexists(folder / "HEAD"))


def _plain(name: str) -> str:
    plain = _IGNORABLE.sub("", name).casefold()
    return ".git" if plain == "git~1" else plain
