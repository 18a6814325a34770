"""Translate the framework's own configuration keys, and their older spellings, into the one settings tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, cast

from task.errors import SettingsError

Convert = Callable[[Any], Any]

PROVIDERS: Mapping[str, str | None] = {
    "dial": None,
    "openai": None,
    "ollama": None,
    "dapr": None,
    "local": None,  # the model on this machine, behind local Core
    "azure_openai": None,
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "anthropic": "https://api.anthropic.com/v1",
}
# The keys of `llm` and of a provider's section in it, and the setting of each.
MODEL_KEYS: Mapping[str, str] = {
    "api_key": "openai_api_key",
    "base_url": "openai_base_url",
    "endpoint": "openai_base_url",
    "model": "deployment_name",
    "model_name": "deployment_name",
    "deployment_name": "deployment_name",
    "temperature": "temperature",
    "max_tokens": "llm.max_tokens",
    "max_output_tokens": "llm.max_tokens",
    "top_p": "llm.top_p",
    "top_k": "llm.top_k",
    "attempts": "llm.attempts",
    "retry_seconds": "llm.retry_seconds",
    "num_ctx": "ollama.context_tokens",
    "keep_alive": "ollama.keep_alive",
    "component": "dapr.component",
}
# What some of those keys set where the provider is not one with OpenAI's API.
_OF_PROVIDER: Mapping[str, Mapping[str, str]] = {
    "dial": {"openai_api_key": "dial_api_key", "openai_base_url": "dial_endpoint"},
    "local": {"openai_api_key": "dial_api_key", "openai_base_url": "dial_endpoint"},
    "ollama": {"openai_api_key": "ollama_api_key", "openai_base_url": "ollama_local"},
    "dapr": {"openai_api_key": "dapr_api_token", "openai_base_url": "dapr_grpc_endpoint"},
}


def _same(section: str, target: str, *names: str) -> dict[str, str]:
    return {f"{section}.{name}": f"{target}.{name}" for name in names}


ALIASES: Mapping[str, str] = {
    "framework.name": "console.name",
    "framework.version": "console.version",
    "framework.log_level": "log_level",
    "framework.log_file": "log_file",
    "framework.debug_mode": "console.debug_mode",
    "framework.default_persona": "context.persona",
    "logging.level": "log_level",
    "logging.log_level": "log_level",
    "logging.file": "log_file",
    "logging.log_file": "log_file",
    **_same("message_history", "history", "max_length", "pruning_strategy", "prioritize_system_messages",
            "default_initial_messages", "max_tokens", "summary_tokens"),
    **_same("ui", "console", "color_enabled", "debug_mode", "show_timestamps", "prompt_symbol", "assistant_prefix",
            "system_prefix", "error_prefix", "tool_prefix"),
    "ui.input_prompt": "console.prompt_symbol",
    "ui.use_color": "console.color_enabled",
    **_same("dcm", "context", "allow_absolute_paths", "allow_parent_traversal"),
    "dcm.context_definition_path": "context.definition_path",
    "dcm.context_definition_file": "context.definition_path",
    "dcm.max_document_size": "context.max_document_bytes",
    "dcm.document_cache_enabled": "context.cached_documents",
    "dcm.document_cache_size": "context.cached_documents",
    "dcm.section_identification_regex": "context.section_pattern",
    "context_definition_file": "context.definition_path",
    "context_definition_path": "context.definition_path",
    **{
        key: target
        for section in ("teps", "teps_settings")
        for key, target in {
            **_same(section, "teps", "permission_required", "allowed_tools", "secure_mode", "remember_confirmations",
                    "confirmation_seconds", "bash", "file_read", "file_write"),
            f"{section}.tool_timeout": "limits.tool_seconds",
        }.items()
    },
    "advanced.state_file": "console.state_file",
    "advanced.max_retries": "llm.attempts",
    "advanced.retry_delay_base": "llm.retry_seconds",
    "advanced.icerc_timeout": "teps.confirmation_seconds",
}  # fmt: skip
SECTIONS = frozenset(key.partition(".")[0] for key in ALIASES) | {"llm", "llm_provider", "llm_settings"}


def _number(unit: str, change: Callable[[float], float]) -> Convert:
    def converted(value: Any) -> Any:
        if type(value) in (int, float):
            return change(value)
        raise ValueError(f"it must be a number of {unit}")

    return converted


_CONVERTED: Mapping[str, Convert] = {
    "teps.tool_timeout": _number("milliseconds", lambda value: value / 1000),
    "teps_settings.tool_timeout": _number("milliseconds", lambda value: value / 1000),
    "advanced.max_retries": _number("retries", lambda value: value + 1),
}


@dataclass(slots=True)
class Translated:
    """A settings file in the tree's own names; `spelled` has the file's name for a key where it is another one."""

    content: dict[str, Any] = field(default_factory=dict[str, Any])
    spelled: dict[str, str] = field(default_factory=dict[str, str])

    def put(self, target: str, value: Any, spelled: str, file: str) -> None:
        *path, last = target.split(".")
        place = self.content
        for name in path:
            inner = place.setdefault(name, {})
            if not isinstance(inner, dict):
                raise SettingsError(f"{name} in {file} must hold settings of its own. Correct it.")
            place = cast("dict[str, Any]", inner)
        if last in place and place[last] != value:
            other = self.spelled.get(target, target)
            raise SettingsError(f"{other} and {spelled} in {file} set the same thing differently. Remove one of them.")
        place[last] = value
        self.spelled[target] = spelled


def translated(content: Mapping[str, Any], file: str) -> Translated:
    """The file's content with every documented key in its place in the tree.

    Raises:
        SettingsError: a documented section holds an unknown key, or two keys set one thing differently.
    """
    result = Translated({name: value for name, value in content.items() if name not in SECTIONS})
    for key, value in _leaves(content, file):
        if key == "dcm.document_cache_enabled":
            if value is False:
                result.content.setdefault("context", {})["cached_documents"] = 0
        elif key == "dcm.document_cache_size" and _switched_off(content):
            continue
        elif key in ALIASES:
            result.put(ALIASES[key], _converted(key, value, file), key, file)
        else:
            raise _unknown(key, ALIASES, file)
    _put_model(content, result, file)
    return result


def _leaves(content: Mapping[str, Any], file: str) -> Iterator[tuple[str, Any]]:
    for section in content:
        if section not in SECTIONS or section.startswith("llm"):
            continue
        if section in ALIASES:
            yield section, content[section]
            continue
        for name, value in _section(content, section, file).items():
            yield f"{section}.{name}", value


def _switched_off(content: Mapping[str, Any]) -> bool:
    return content["dcm"].get("document_cache_enabled") is False


def _section(content: Mapping[str, Any], section: str, file: str) -> dict[str, Any]:
    value = content.get(section, {})
    if not isinstance(value, dict):
        raise SettingsError(f"{section} in {file} must hold settings of its own. Correct it.")
    return cast("dict[str, Any]", value)


def _converted(key: str, value: Any, file: str) -> Any:
    try:
        return _CONVERTED[key](value) if key in _CONVERTED else value
    except ValueError as error:
        raise SettingsError(f"{key} in {file}: {error} (got {str(value)[:80]!r}). Correct it.") from None


def _put_model(content: Mapping[str, Any], result: Translated, file: str) -> None:
    sections = {name: _section(content, name, file) for name in ("llm", "llm_settings")}
    named = [("llm_provider", content["llm_provider"])] if "llm_provider" in content else []
    named += [(f"{name}.provider", section["provider"]) for name, section in sections.items() if "provider" in section]
    provider = None
    for key, value in named:
        provider = _provider(key, value, file)
        backend = "dial" if provider == "local" else provider
        result.put("backend", backend if backend in _OF_PROVIDER else "openai", key, file)
        if provider == "local":
            result.put("core.model", "local", key, file)
    for name, section in sections.items():
        shared = {key: value for key, value in section.items() if key not in PROVIDERS and key != "provider"}
        _put_keys(shared, name, provider, result, file)
        for other in section.keys() & PROVIDERS:  # another provider's section is checked and not used
            target = result if other == provider else Translated()
            _put_keys(_section(section, other, file), f"{name}.{other}", other, target, file)
    if provider is not None and (address := PROVIDERS[provider]) and "openai_base_url" not in result.content:
        result.put("openai_base_url", address, named[0][0], file)


def _put_keys(keys: Mapping[str, Any], section: str, provider: str | None, result: Translated, file: str) -> None:
    for name, value in keys.items():
        key, target = f"{section}.{name}", MODEL_KEYS.get(name)
        if target is None:
            raise _unknown(key, [f"{section}.{known}" for known in (*MODEL_KEYS, "provider")], file)
        target = _OF_PROVIDER.get(provider or "", {}).get(target, target)
        if provider == "azure_openai" and target == "openai_base_url" and "/openai" not in str(value):
            value = f"{str(value).rstrip('/')}/openai/v1"
        result.put(target, value, key, file)


def _provider(key: str, value: Any, file: str) -> str:
    if isinstance(value, str) and value in PROVIDERS:
        return value
    nearest = get_close_matches(str(value), PROVIDERS, n=1, cutoff=0.0)[0]
    raise SettingsError(
        f"{key} in {file}: there is no provider {str(value)[:40]!r}; the nearest is {nearest}. "
        f"There are: {', '.join(PROVIDERS)}."
    )


def _unknown(key: str, known: Iterable[str], file: str) -> SettingsError:
    nearest = get_close_matches(key, sorted(known), n=1, cutoff=0.0)[0]
    return SettingsError(f"{key} in {file} is not a setting; the nearest is {nearest}. Rename or remove it.")
