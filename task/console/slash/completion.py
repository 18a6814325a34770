"""Completion of what is typed: commands, their arguments, and files after `@`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from threading import Lock

from cachetools import TTLCache

from task.closing import run_blocking
from task.console.console import Console
from task.console.slash.inspecting import valid_grants
from task.console.slash.sessions import LISTED
from task.console.slash.table import COMMANDS, DEFAULT, DETACH, OVERWRITE, REVOKE
from task.console.terminal.typed import last_word
from task.errors import AgentError
from task.tools.workspace.root import IGNORED

MOST = 40  # candidates
MOST_READ = 20_000  # entries of one folder
LONGEST = 4_000  # characters before the cursor; a longer text was pasted
KEPT_SECONDS = 10.0
SECRETS = (
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.env", "id_rsa*", "id_ed25519*", "id_ecdsa*",
    "credentials*", "secrets.*",
)  # fmt: skip
_UNQUOTED = re.compile(r"\\(.)")
_QUOTED = re.compile(r"([\s\\\"'])")


class Completion:
    """Completes what is typed into a console; models, sessions and personas are looked up at most every ten seconds.

    A lookup may wait for a server, so that this is called in a thread beside the terminal's own.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._kept: TTLCache[str, list[str]] = TTLCache(len(COMMANDS), KEPT_SECONDS)
        self._access = Lock()
        self._arguments: Mapping[str, Callable[[str, str], Iterable[str]]] = {
            "/help": lambda before, _: [] if before else [name.removeprefix("/") for name in COMMANDS],
            "/persona": lambda before, _: [] if before else [DEFAULT, *self._looked_up("/persona", self._personas)],
            "/model": lambda before, _: [] if before else self._looked_up("/model", self._models),
            "/resume": lambda before, _: [] if before else self._looked_up("/resume", self._sessions),
            "/permissions": self._permissions,
            "/files": self._files,
            "/save": lambda _, word: [OVERWRITE, *_paths(word, console.product.folder)],
        }

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
            candidates = self._arguments.get(name.lower(), lambda *_: ())(rest.removesuffix(word).strip(), word)
        except AgentError:  # the store, or the console itself, is not there
            return []
        return list(islice((found for found in candidates if found.startswith(word)), MOST))

    def _looked_up(self, name: str, look_up: Callable[[], list[str]]) -> list[str]:
        with self._access:  # several threads may complete at a time
            found = self._kept.get(name)
        if found is None:
            found = look_up()
            with self._access:
                self._kept[name] = found
        return found

    def _personas(self) -> list[str]:
        context = self._console.product.profile.context
        return run_blocking(context.personas) if context is not None else []

    def _models(self) -> list[str]:
        return run_blocking(self._console.product.profile.listed_models, self._console.caller.core_key)

    def _sessions(self) -> list[str]:
        async def newest() -> list[str]:
            store = await self._console.product.services.store.get()
            return [item.session_id for item in (await store.sessions.list(self._console.caller.owner, LISTED)).items]

        return run_blocking(newest)

    def _permissions(self, before: str, word: str) -> Iterable[str]:
        if not before:
            return [REVOKE]
        console = self._console
        found = run_blocking(valid_grants, console.product, console.caller.owner, console.session_id)
        return ["all", *(grant.grant_id for grant in found)]

    def _files(self, before: str, word: str) -> Iterable[str]:
        if before == DETACH:
            return ["all", *(_quoted(file.name) for file in self._console.attached)]
        return [DETACH, *_paths(word, self._console.product.folder)] if not before else []


def _paths(word: str, folder: Path) -> list[str]:
    """The files and folders whose path begins like this; hidden ones only where a dot is typed, and no secrets."""
    head, name = os.path.split(_UNQUOTED.sub(r"\1", word).removeprefix('"'))
    shown = f"{word.rpartition('/')[0]}/" if "/" in word else ""
    found = list[tuple[bool, str]]()
    with suppress(OSError, RuntimeError, ValueError), os.scandir(folder / Path(head).expanduser()) as entries:
        fitting = (entry for entry in islice(entries, MOST_READ) if entry.name.startswith(name))
        found = [(not entry.is_dir(), entry.name) for entry in fitting if _is_offered(entry.name, name)]
    return [f"{shown}{_quoted(name)}{'' if is_file else '/'}" for is_file, name in sorted(found)[:MOST]]


def _is_offered(name: str, typed: str) -> bool:
    if name in IGNORED or any(fnmatchcase(name.lower(), pattern) for pattern in SECRETS):
        return False
    return name.isprintable() and (typed.startswith(".") or not name.startswith("."))


def _quoted(name: str) -> str:
    return _QUOTED.sub(r"\\\1", name)
