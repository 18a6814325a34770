"""The conversation's attached files as code will find them: under which names, and in which version."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePosixPath
from urllib.parse import unquote

from task.conversation.messages import Attachment
from task.errors import ToolError
from task.tools.py_interpreter.own_files import ConversationFiles

MAX_FILES = 50
_UNFIT = re.compile(r"[\x00-\x1f\x7f/\\]+")
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class Input:
    """One file for the working directory; another `version` means another content."""

    name: str
    url: str
    version: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files that can be had, and sentences about those that cannot."""

    files: tuple[Input, ...] = ()
    notes: tuple[str, ...] = ()

    def versions(self) -> dict[str, str]:
        return {file.name: file.version for file in self.files}

    def named(self, names: Iterable[str]) -> list[Input]:
        wanted = set(names)
        return [file for file in self.files if file.name in wanted]


async def inputs_of(attachments: Sequence[Attachment], files: ConversationFiles, api_key: str) -> Inputs:
    """The conversation's files; each is looked up with the caller's own key, which also proves the right to it."""
    urls = _named([item for item in attachments if _is_file(item.url)])
    found = await asyncio.gather(*(_input(name, url, files, api_key) for name, url in urls[-MAX_FILES:]))
    return Inputs(
        tuple(item for item in found if isinstance(item, Input)),
        tuple(item for item in found if isinstance(item, str)),
    )


def _is_file(url: str | None) -> bool:
    return url is not None and url.startswith("files/") and not url.endswith("/")


def _named(attachments: Sequence[Attachment]) -> list[tuple[str, str]]:
    by_url = {str(item.url): item for item in attachments}
    taken: dict[str, str] = {}
    for url, item in by_url.items():
        name = plain_name(item.title or unquote(PurePosixPath(url).name), url)
        path, number = PurePosixPath(name), 2
        while name in taken:
            name, number = f"{path.stem}_{number}{path.suffix}", number + 1
        taken[name] = url
    return list(taken.items())


def plain_name(title: str, url: str) -> str:
    """The title as a file name; with the ending of the URL where a title has none."""
    name = _UNFIT.sub("_", title).strip(" .") or "file"
    path, ending = PurePosixPath(name), PurePosixPath(unquote(url)).suffix
    return f"{path.stem[:_LONGEST]}{(path.suffix or ending)[:20]}"


async def _input(name: str, url: str, files: ConversationFiles, api_key: str) -> Input | str:
    try:
        found = await files.metadata(url, api_key)
    except ToolError as error:
        return f"{name} is not in the working directory: {error}"
    return Input(name, url, sha256(f"{url}\n{found.etag}".encode()).hexdigest()[:16])
