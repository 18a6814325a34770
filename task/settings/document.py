"""The settings file: read as YAML, its `${VARIABLE}` filled in, and the framework's own keys in their places."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from string import Template
from typing import Any, cast

import yaml

from task.errors import SettingsError
from task.settings.framework import ConsoleSettings, HistorySettings, ModelSettings, TepsSettings

MAX_BYTES = 256 * 2**10
MAX_NODES = 20_000  # with every alias written out
MAX_DEPTH = 50

_TABLES: Mapping[str, Mapping[str, Any]] = tomllib.loads(Path(__file__).with_name("aliases.toml").read_text("utf-8"))
PROVIDERS: Mapping[str, Mapping[str, str]] = _TABLES["providers"]
MODEL_KEYS: Mapping[str, str] = {**_TABLES["llm"], **{name: f"llm.{name}" for name in ModelSettings.model_fields}}
_SECTIONS = ("framework", "dcm", "teps", "advanced")
_OF_FRAMEWORK = ("name", "version", "state_file")  # settings of the console that are not keys of `ui`
# The keys of the other sections, and the setting of each.
ALIASES: Mapping[str, str] = {
    **{f"message_history.{name}": f"history.{name}" for name in HistorySettings.model_fields},
    **{f"ui.{name}": f"console.{name}" for name in ConsoleSettings.model_fields if name not in _OF_FRAMEWORK},
    **{f"teps.{name}": f"teps.{name}" for name in TepsSettings.model_fields},
    **{f"{section}.{name}": own for section in _SECTIONS for name, own in _TABLES[section].items()},
}
SECTIONS = frozenset(key.partition(".")[0] for key in ALIASES) | {"llm"}
# Keys whose numbers mean something else than those of their settings.
_CONVERTED: Mapping[str, Callable[[float], float]] = {
    "teps.tool_timeout": lambda milliseconds: milliseconds / 1000,
    "advanced.max_retries": lambda retries: retries + 1,
}


class _Filled(Template):
    """A text with `${NAME}`; no other `$` means anything."""

    pattern: Any = r"\$(?:(?P<escaped>\$)(?={)|{(?P<braced>[A-Za-z_][A-Za-z0-9_]*)}|(?P<invalid>(?={))|(?P<named>(?!)))"


class _Loader(yaml.SafeLoader):
    """Refuses a key that occurs twice, of which YAML would silently take the last one."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node, seen = super().compose_mapping_node(anchor), set[str]()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    line = key.start_mark.line + 1 if key.start_mark else 0
                    raise SettingsError(f"names {key.value[:60]!r} twice, again in line {line}. Remove one.")
                seen.add(key.value)
        return node


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
        content = _Loader(text).get_single_data()
    except RecursionError:
        raise SettingsError("is nested too deeply. Correct it.") from None
    except (yaml.YAMLError, ValueError) as error:
        raise SettingsError(f"is not valid YAML: {' '.join(str(error).split())}. Correct it.") from error
    values, count = [(content, 0)], 0  # an alias is one more way to the same value, which may lead to itself
    while values:
        value, depth = values.pop()
        count += 1
        if depth > MAX_DEPTH:
            raise SettingsError("is nested too deeply. Correct it.")
        if count > MAX_NODES:
            raise SettingsError(f"holds more than {MAX_NODES:,} values. Shorten it.")
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        values += [(item, depth + 1) for item in cast("Iterable[Any]", inner)]
    return content


def _without_empty(content: dict[str, Any]) -> dict[str, Any]:
    return {
        str(name): _without_empty(cast("dict[str, Any]", value)) if isinstance(value, dict) else value
        for name, value in content.items()
        if value is not None
    }


def translated(content: Mapping[str, Any], file: str) -> Translation:
    """The file's content with every documented key in its place in the tree.

    Raises:
        SettingsError: a documented section holds an unknown key, or two keys set one thing differently.
    """
    result = Translation(file, {name: value for name, value in content.items() if name not in SECTIONS})
    for section in [name for name in content if name in SECTIONS]:
        keys = dict(_section(content, section, file))
        if section == "llm":
            result.put_model(keys)
            continue
        if section == "dcm" and keys.pop("document_cache_enabled", True) is False:
            keys["document_cache_size"] = 0
        for name, value in keys.items():
            key = f"{section}.{name}"
            if key not in ALIASES:
                raise _unknown(key, ALIASES, file)
            if key in _CONVERTED:
                if type(value) not in (int, float):
                    raise SettingsError(f"{key} in {file}: it must be a number. Correct it.")
                value = _CONVERTED[key](value)
            result.put(ALIASES[key], value, key)
    return result


@dataclass(slots=True)
class Translation:
    """A settings file in the tree's own names; `spelled` has the file's name for a key where it is another one."""

    file: str
    content: dict[str, Any] = field(default_factory=dict[str, Any])
    spelled: dict[str, str] = field(default_factory=dict[str, str])

    def spelling(self, path: Sequence[str]) -> str:
        """The dotted key as the file has it."""
        for length in range(len(path), 0, -1):
            if own := self.spelled.get(".".join(path[:length])):
                return ".".join((own, *path[length:]))
        return ".".join(path)

    def expand(self, variables: Mapping[str, str]) -> None:
        """Replace `${NAME}` in all texts of the content; `$${` stands for `${`.

        A value of empty variables only is left out, like an empty key.

        Raises:
            SettingsError: a variable is not set or its name is malformed.
        """

        def walk(item: Any, path: tuple[str, ...]) -> Any:
            if isinstance(item, dict):
                filled = {key: walk(inner, (*path, key)) for key, inner in cast("dict[str, Any]", item).items()}
                return {key: inner for key, inner in filled.items() if inner is not None}
            if isinstance(item, list):
                return [walk(inner, path) for inner in cast("list[Any]", item)]
            if not isinstance(item, str) or "${" not in item:
                return item
            try:
                return _Filled(item).substitute(variables) or None
            except KeyError as error:
                fault = f"the variable {error.args[0]} is not set. Set it, or write the value instead."
            except ValueError:
                fault = "a ${ names no variable. Write ${NAME}, or $${ for the characters."
            raise SettingsError(f"{self.spelling(path)} in {self.file}: {fault}")

        self.content = walk(self.content, ())

    def put(self, target: str, value: Any, spelled: str) -> None:
        *path, last = target.split(".")
        place = self.content
        for name in path:
            place.setdefault(name, {})
            place = _section(place, name, self.file)
        if last in place and place[last] != value:
            both = f"{self.spelled.get(target, target)} and {spelled} in {self.file}"
            raise SettingsError(f"{both} set the same thing differently. Remove one of them.")
        place[last] = value
        self.spelled[target] = spelled

    def put_model(self, llm: Mapping[str, Any]) -> None:
        provider = llm.get("provider")
        if "provider" in llm:
            if not isinstance(provider, str) or provider not in PROVIDERS:
                raise SettingsError(
                    f"llm.provider in {self.file}: there is no provider {str(provider)[:40]!r}; the nearest is "
                    f"{nearest(str(provider), PROVIDERS)}. There are: {', '.join(PROVIDERS)}."
                )
            backend = provider if "openai_api_key" in PROVIDERS[provider] else "openai"
            self.put("backend", "dial" if provider == "local" else backend, "llm.provider")
            if provider == "local":
                self.put("core.model", "local", "llm.provider")
        shared = {key: value for key, value in llm.items() if key not in PROVIDERS and key != "provider"}
        self._put_keys(shared, "llm", provider)
        for other in llm.keys() & PROVIDERS:  # another provider's section is checked and not used
            target = self if other == provider else Translation(self.file)
            target._put_keys(_section(llm, other, self.file), f"llm.{other}", other)
        address = PROVIDERS[provider].get("address") if provider is not None else None
        if address is not None and "openai_base_url" not in self.content:
            self.put("openai_base_url", address, "llm.provider")

    def _put_keys(self, keys: Mapping[str, Any], section: str, provider: str | None) -> None:
        own = PROVIDERS.get(provider or "", {})
        for name, value in keys.items():
            key, target = f"{section}.{name}", MODEL_KEYS.get(name)
            if target is None:
                raise _unknown(key, [f"{section}.{known}" for known in (*MODEL_KEYS, "provider")], self.file)
            if provider == "azure_openai" and target == "openai_base_url" and "/openai" not in str(value):
                value = f"{str(value).rstrip('/')}/openai/v1"
            self.put(own.get(target, target), value, key)


def _section(content: Mapping[str, Any], section: str, file: str) -> dict[str, Any]:
    value = content[section]
    if not isinstance(value, dict):
        raise SettingsError(f"{section} in {file} must hold settings of its own. Correct it.")
    return cast("dict[str, Any]", value)


def _unknown(key: str, known: Collection[str], file: str) -> SettingsError:
    return SettingsError(
        f"{key} in {file} is not a setting; the nearest is {nearest(key, known)}. Rename or remove it."
    )


def nearest(name: str, names: Collection[str]) -> str:
    """The one of the names that is most like `name`."""
    return get_close_matches(name, sorted(names), n=1, cutoff=0.0)[0]
