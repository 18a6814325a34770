"""The names under which programs find a conversation's files in their working directory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from urllib.parse import unquote

_UNFIT = re.compile(r"[\x00-\x1f\x7f/\\]+")
_LONGEST = 120


def file_names(files: Iterable[tuple[str, str]]) -> list[str]:
    """A name for each title and address: the title, with a number where an earlier file has that name."""
    names: dict[str, None] = {}
    for title, url in files:
        name = plain_name(title or unquote(PurePosixPath(url).name), url)
        path, number = PurePosixPath(name), 2
        while name in names:
            name, number = f"{path.stem}_{number}{path.suffix}", number + 1
        names[name] = None
    return list(names)


def plain_name(title: str, url: str) -> str:
    """The title as a file name, with the ending of the URL if it has none."""
    name = _UNFIT.sub("_", title).strip(" .") or "file"
    path, ending = PurePosixPath(name), PurePosixPath(unquote(url)).suffix
    return f"{path.stem[:_LONGEST]}{(path.suffix or ending)[:20]}"
