"""Completion of what is typed: commands, their arguments, and files after `@`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from cachetools import TTLCache, cached

from task.closing import run_blocking
from task.console.slash.inspecting import LISTED, valid_grants
from task.console.slash.table import COMMANDS, DEFAULT, DETACH, OVERWRITE, REVOKE
from task.console.terminal.rendering import last_word
from task.errors import AgentError
from task.tools.workspace.root import IGNORED

if TYPE_CHECKING:
    from task.console.controller import FrameworkController

MOST = 40  # candidates
MOST_READ = 20_000  # entries of one folder
LONGEST = 4_000  # characters before the cursor; a longer text was pasted
KEPT_SECONDS = 10.0
SECRETS = (
    *("*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.env"),
    *("id_rsa*", "id_ed25519*", "id_ecdsa*", "credentials*", "secrets.*"),
)
_UNQUOTED = re.compile(r"\\(.)")
_QUOTED = re.compile(r"([\s\\\"'])")


class Completion:
    """Completes what is typed into a console; models, sessions and personas are looked up at most every ten seconds.

    A lookup may wait for a server, so that this is called in a thread beside the terminal's own.
    """

    def __init__(self, console: FrameworkController) -> None:
        self._console = console
        # Several threads may complete at a time.
        self._looked_up = cached(TTLCache[str, list[str]](len(COMMANDS), KEPT_SECONDS), lock=Lock())(self._look_up)

    def complete(self, text: str) -> list[str]:
        """What may take the place of the last word of the text before the cursor."""
        if len(text) > LONGEST:
            return []
        word = last_word(text)
        if word.startswith("@"):
            return [f"@{path}" for path in _paths(word[1:], self._console.product.folder)]
        if not text.startswith("/"):
            return []
        if word == text:
            return [name for name in COMMANDS if name.startswith(word.lower())]
        name, _, rest = text.partition(" ")
        try:
            candidates = self._arguments(name.lower(), rest.removesuffix(word).strip(), word)
        except AgentError:  # the store, or the console itself, is not there
            return []
        return list(islice((found for found in candidates if found.startswith(word)), MOST))

    def _arguments(self, name: str, before: str, word: str) -> Iterable[str]:
        console, folder = self._console, self._console.product.folder
        match name, before:
            case "/save", _:
                return [OVERWRITE, *_paths(word, folder)]
            case "/permissions", "":
                return [REVOKE]
            case "/permissions", _:
                found = run_blocking(valid_grants, console.product, console.caller.owner, console.session_id)
                return ["all", *(grant.grant_id for grant in found)]
            case "/files", "":
                return [DETACH, *_paths(word, folder)]
            case "/files", before if before == DETACH:
                return ["all", *(_quoted(file.name) for file in console.attached)]
            case "/help", "":
                return [name.removeprefix("/") for name in COMMANDS]
            case "/persona" | "/model" | "/resume", "":
                return self._looked_up(name)
            case _:
                return []

    def _look_up(self, name: str) -> list[str]:
        console, profile = self._console, self._console.product.profile

        async def sessions() -> list[str]:
            store = await console.product.services.store.get()
            return [item.session_id for item in (await store.sessions.list(console.caller.owner, LISTED)).items]

        if name == "/resume":
            return run_blocking(sessions)
        if name == "/model":
            return run_blocking(profile.listed_models, console.caller.core_key)
        return [DEFAULT, *(run_blocking(profile.context.personas) if profile.context is not None else ())]


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
