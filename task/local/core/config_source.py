"""Where Core's configuration comes from: files that are read again when they change, or a fixed document."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from pydantic import ValidationError

from task.errors import SettingsError
from task.local.core.config import CoreConfig

logger = logging.getLogger(__name__)

KEY_VARIABLE = "DIAL_API_KEY"
PUBLISHED_KEY = "dial_api_key"  # stands in DIAL's documentation and in shared configuration files: no secret

_VARIABLE = re.compile(r"\$\{(?:env[:.])?([A-Za-z_][A-Za-z0-9_]*)\}")


class ConfigSource:
    """The current configuration; `current` reads changed files again and keeps the last good one on an error."""

    def __init__(
        self, paths: Sequence[Path], document: Mapping[str, Any] | None, prepare: Callable[[Any], CoreConfig]
    ) -> None:
        self._paths = tuple(paths)
        self._document = document
        self._prepare = prepare
        self._stamp = self._stamp_now()
        self._config = self._load()

    def current(self) -> CoreConfig:
        stamp = self._stamp_now()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._config = self._load()
            except SettingsError as error:
                logger.warning("Core's configuration was not reloaded: %s", error)
        return self._config

    def _load(self) -> CoreConfig:
        document: dict[str, Any] = _merged({}, self._document or {})
        for path in self._paths:
            document = _merged(document, _read(path))
        try:
            return self._prepare(document)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(str(step) for step in first["loc"])
            files = ", ".join(map(str, self._paths)) or "Core's configuration"
            raise SettingsError(f"{files}: {place or 'the document'}: {first['msg']}. Correct it.") from None

    def _stamp_now(self) -> tuple[tuple[int, int], ...]:
        stats = [path.stat() if path.exists() else None for path in self._paths]
        return tuple((stat.st_mtime_ns, stat.st_size) if stat else (0, 0) for stat in stats)


def expanded(document: Any, environment: Mapping[str, str], hosts: Mapping[str, str]) -> Any:
    """The document with `${env:NAME}` replaced and the host names of addresses replaced by `hosts`.

    Unknown variables become empty. An address keeps its port where `hosts` names none (`{"agent": "127.0.0.1"}`,
    `{"agent": "127.0.0.1:5031"}`).
    """

    def text(value: str) -> str:
        return _rehosted(_VARIABLE.sub(lambda match: environment.get(match[1], ""), value), hosts)

    def changed(value: Any) -> Any:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, list):
            return [changed(item) for item in value]
        if isinstance(value, dict):
            return {text(key): changed(item) for key, item in value.items()}
        return value

    return changed(document)


def with_installation_key(document: dict[str, Any], key: str) -> dict[str, Any]:
    """The document with `key` in place of the published example key, or in a new entry."""
    entries = dict(document.get("keys") or {})
    published = entries.pop(PUBLISHED_KEY, None)
    entries.pop("", None)  # an unset variable must not become a key
    entries.setdefault(key, published or {"project": "local", "role": "default"})
    return {**document, "keys": entries}


def _rehosted(text: str, hosts: Mapping[str, str]) -> str:
    if not text.startswith(("http://", "https://")):
        return text
    parts = urlsplit(text)
    host = hosts.get(parts.hostname or "")
    if host is None:
        return text
    port = f":{parts.port}" if parts.port and urlsplit(f"//{host}").port is None else ""
    return urlunsplit(parts._replace(netloc=f"{host}{port}"))


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"Core's configuration {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise SettingsError(f"Core's configuration {path} is not JSON: {error}. Correct it.") from None
    if not isinstance(document, dict):
        raise SettingsError(f"Core's configuration {path} must be a JSON object. Correct it.")
    return document


def _merged(base: dict[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in update.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return result
