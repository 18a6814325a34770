"""Completion of what is typed: commands, their arguments, and files after `@`."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from task.console.slash.picks import completions
from task.console.slash.table import COMMANDS, DETACH, OVERWRITE, REVOKE
from task.console.terminal.rendering import last_word
from task.tools.workspace.root import IGNORED

if TYPE_CHECKING:
    from task.console.controller import FrameworkController

MOST = 40  # candidates
MOST_READ = 20_000  # entries of one folder
LONGEST = 4_000  # characters before the cursor; a longer text was pasted
SECRETS = (
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.env"),
    *("id_rsa*", "id_ed25519*", "id_ecdsa*", "credentials*", "secrets.*"),
)
_UNQUOTED = re.compile(r"\\(.)")
_QUOTED = re.compile(r"([\s\\\"'])")


def complete(console: FrameworkController, text: str) -> list[str]:
    """What may take the place of the last word of the text before the cursor.

    A folder may be huge, so that this is called in a thread beside the terminal's own.
    """
    if len(text) > LONGEST:
        return []
    word, folder = last_word(text), console.folder
    if word.startswith("@"):
        return [*(f"@{path}" for path in _paths(word[1:], folder)), *completions(console, word)][:MOST]
    if not text.startswith("/"):
        return []
    if word == text:
        commands = [name for name in COMMANDS if name.startswith(word.lower())]
        return list(dict.fromkeys([*commands, *completions(console, word)]))[:MOST]
    name, _, rest = text.partition(" ")
    match name.lower(), rest.removesuffix(word).strip():
        case "/save", _:
            found = [OVERWRITE, *_paths(word, folder)]
        case "/permissions", "":
            found = [REVOKE]
        case "/files", "":
            found = [DETACH, *_paths(word, folder)]
        case "/files", before if before == DETACH:
            found = ["all", *(_quoted(file.name) for file in console.attached)]
        case "/help", "":
            found = [name.removeprefix("/") for name in COMMANDS]
        case _:
            found = []
    return [candidate for candidate in found if candidate.startswith(word)][:MOST]


def _paths(word: str, folder: Path) -> list[str]:
    """The files and folders whose path begins like this; hidden ones only where a dot is typed, and no secrets."""
    head, typed = os.path.split(_UNQUOTED.sub(r"\1", word).removeprefix('"'))
    shown = f"{word.rpartition('/')[0]}/" if "/" in word else ""
    found = list[tuple[bool, str]]()
    with suppress(OSError, RuntimeError, ValueError), os.scandir(folder / Path(head).expanduser()) as entries:
        for entry in islice(entries, MOST_READ):
            name = entry.name
            secret = name in IGNORED or any(fnmatchcase(name.lower(), pattern) for pattern in SECRETS)
            hidden = name.startswith(".") and not typed.startswith(".")
            if name.startswith(typed) and name.isprintable() and not secret and not hidden:
                found.append((not entry.is_dir(), name))
    return [f"{shown}{_quoted(name)}{'' if is_file else '/'}" for is_file, name in sorted(found)[:MOST]]


def _quoted(name: str) -> str:
    return _QUOTED.sub(r"\\\1", name)
