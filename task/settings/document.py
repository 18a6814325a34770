"""Read a YAML settings file: no duplicate keys, no alias bombs, `${VARIABLE}` filled in."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import yaml

from task.errors import SettingsError

MAX_BYTES = 256 * 2**10
MAX_NODES = 20_000  # with every alias written out
MAX_DEPTH = 50

_VARIABLE = re.compile(r"(?P<escape>\$)?\$\{(?P<name>[^}]*)\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Loader(yaml.SafeLoader):
    """Stops at a depth that no settings have: deeper nesting takes the parser seconds and exhausts the stack."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise SettingsError("is nested too deeply. Correct it.")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def close(self) -> None:
        self.dispose()


def read_document(path: Path) -> dict[str, Any]:
    """A YAML file's mapping, without its empty keys.

    Raises:
        SettingsError: the file cannot be read, is not YAML, is not a mapping, names a key twice, or grows too large.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise SettingsError(f"has more than {MAX_BYTES:,} bytes. Name another file.")
        content = parsed(path.read_text(encoding="utf-8"))
        if content is not None and not isinstance(content, dict):
            raise SettingsError("must hold `name: value` lines. Correct it.")
    except SettingsError as error:
        raise SettingsError(f"The settings file {path} {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise SettingsError(f"The settings file {path} cannot be read: {reason}. Name another file.") from error
    return _without_empty(cast("dict[str, Any]", content or {}))


def parsed(text: str) -> Any:
    """The text's content.

    Raises:
        SettingsError: it is not YAML, names a key twice, or grows too large; what is wrong with the file.
    """
    try:
        with closing(_Loader(text)) as loader:
            node = loader.get_single_node()
            _measure(node, {})
            return loader.construct_document(node) if node is not None else None
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"is not valid YAML: {' '.join(str(error).split())}. Correct it.") from error


def expanded(
    content: Mapping[str, Any], variables: Mapping[str, str], spelling: Callable[[tuple[str, ...]], str], file: str
) -> tuple[dict[str, Any], set[str]]:
    """The content with `${NAME}` replaced in all its texts, and the dotted keys where that happened.

    `$${` stands for `${`. A value of empty variables only is left out, like an empty key. `spelling` returns the key as
    the file has it.

    Raises:
        SettingsError: a variable is not set or its name is malformed.
    """
    changed: set[str] = set()

    def walk(item: Any, path: tuple[str, ...]) -> Any:
        if isinstance(item, dict):
            filled = {key: walk(inner, (*path, key)) for key, inner in cast("dict[str, Any]", item).items()}
            return {key: inner for key, inner in filled.items() if inner is not None}
        if isinstance(item, list):
            return [walk(inner, path) for inner in cast("list[Any]", item)]
        if not isinstance(item, str) or "${" not in item:
            return item
        changed.add(".".join(path))

        def value(found: re.Match[str]) -> str:
            name, where = found["name"], f"{spelling(path)} in {file}"
            if found["escape"]:
                return found[0][1:]
            if not found[0].endswith("}") or not _NAME.fullmatch(name):
                fix = "Write ${NAME}, or $${ for the characters."
                raise SettingsError(f"{where}: {found[0][:40]!r} names no variable. {fix}")
            if name not in variables:
                fix = "Set it, or write the value instead."
                raise SettingsError(f"{where}: the variable {name} is not set. {fix}")
            return variables[name]

        return _VARIABLE.sub(value, item) or None

    return walk(dict(content), ()), changed


def _measure(node: yaml.Node | None, known: dict[int, int]) -> int:
    # The number of nodes below this one when every alias is written out.
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) in known:
        if known[id(node)] == 0:
            raise SettingsError(f"contains itself at line {_line(node)}. Correct it.")
        return known[id(node)]
    known[id(node)] = 0
    size, seen = 1, set[str]()
    for child in node.value:
        inner = child if isinstance(child, tuple) else (child,)
        key: Any = inner[0].value if len(inner) == 2 and inner[0].tag != "tag:yaml.org,2002:merge" else None
        if isinstance(key, str):
            if key in seen:
                raise SettingsError(f"names {key[:60]!r} twice, again in line {_line(inner[0])}. Remove one.")
            seen.add(key)
        size += sum(_measure(part, known) for part in inner)
        if size > MAX_NODES:
            raise SettingsError(f"holds more than {MAX_NODES:,} values. Shorten it.")
    known[id(node)] = size
    return size


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1 if node.start_mark else 0


def _without_empty(content: dict[str, Any]) -> dict[str, Any]:
    return {
        str(name): _without_empty(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for name, value in content.items()
        if value is not None
    }
