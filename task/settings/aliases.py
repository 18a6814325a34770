"""Translate the framework's own configuration keys into the one settings tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, cast

from task.errors import SettingsError

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


# The keys of the other sections, and the setting of each.
ALIASES: Mapping[str, str] = {
    "framework.name": "console.name",
    "framework.version": "console.version",
    "framework.log_level": "log_level",
    "framework.log_file": "log_file",
    "framework.debug_mode": "console.debug_mode",
    "framework.default_persona": "context.persona",
    "message_history.max_length": "history.max_length",
    "message_history.pruning_strategy": "history.pruning_strategy",
    "message_history.prioritize_system_messages": "history.prioritize_system_messages",
    "message_history.default_initial_messages": "history.default_initial_messages",
    "message_history.max_tokens": "history.max_tokens",
    "message_history.summary_tokens": "history.summary_tokens",
    "ui.color_enabled": "console.color_enabled",
    "ui.debug_mode": "console.debug_mode",
    "ui.show_timestamps": "console.show_timestamps",
    "ui.prompt_symbol": "console.prompt_symbol",
    "ui.assistant_prefix": "console.assistant_prefix",
    "ui.system_prefix": "console.system_prefix",
    "ui.error_prefix": "console.error_prefix",
    "ui.tool_prefix": "console.tool_prefix",
    "dcm.allow_absolute_paths": "context.allow_absolute_paths",
    "dcm.allow_parent_traversal": "context.allow_parent_traversal",
    "dcm.context_definition_path": "context.definition_path",
    "dcm.max_document_size": "context.max_document_bytes",
    "dcm.document_cache_enabled": "context.cached_documents",
    "dcm.document_cache_size": "context.cached_documents",
    "dcm.section_identification_regex": "context.section_pattern",
    "teps.permission_required": "teps.permission_required",
    "teps.allowed_tools": "teps.allowed_tools",
    "teps.secure_mode": "teps.secure_mode",
    "teps.remember_confirmations": "teps.remember_confirmations",
    "teps.confirmation_seconds": "teps.confirmation_seconds",
    "teps.bash": "teps.bash",
    "teps.file_read": "teps.file_read",
    "teps.file_write": "teps.file_write",
    "teps.tool_timeout": "limits.tool_seconds",
    "advanced.state_file": "console.state_file",
    "advanced.max_retries": "llm.attempts",
    "advanced.retry_delay_base": "llm.retry_seconds",
    "advanced.icerc_timeout": "teps.confirmation_seconds",
}
SECTIONS = frozenset(key.partition(".")[0] for key in ALIASES) | {"llm"}
# Keys whose numbers mean something else than those of their settings.
_CONVERTED: Mapping[str, tuple[str, Callable[[float], float]]] = {
    "teps.tool_timeout": ("milliseconds", lambda value: value / 1000),
    "advanced.max_retries": ("retries", lambda value: value + 1),
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
    for section in content:
        if section == "llm":
            _put_model(_section(content, section, file), result, file)
        elif section in SECTIONS:
            keys = _section(content, section, file)
            if section == "dcm" and keys.get("document_cache_enabled") is False:
                keys = {**keys, "document_cache_size": 0}
            for name, value in keys.items():
                _put(f"{section}.{name}", value, result, file)
    return result


def _section(content: Mapping[str, Any], section: str, file: str) -> dict[str, Any]:
    value = content[section]
    if not isinstance(value, dict):
        raise SettingsError(f"{section} in {file} must hold settings of its own. Correct it.")
    return cast("dict[str, Any]", value)


def _put(key: str, value: Any, result: Translated, file: str) -> None:
    if key not in ALIASES:
        raise _unknown(key, ALIASES, file)
    if key in _CONVERTED:
        unit, convert = _CONVERTED[key]
        if type(value) not in (int, float):
            got = str(value)[:80]
            raise SettingsError(f"{key} in {file}: it must be a number of {unit} (got {got!r}). Correct it.")
        value = convert(value)
    if key != "dcm.document_cache_enabled":
        result.put(ALIASES[key], value, key, file)


def _put_model(llm: Mapping[str, Any], result: Translated, file: str) -> None:
    provider = llm.get("provider")
    if "provider" in llm:
        if not isinstance(provider, str) or provider not in PROVIDERS:
            nearest = get_close_matches(str(provider), PROVIDERS, n=1, cutoff=0.0)[0]
            raise SettingsError(
                f"llm.provider in {file}: there is no provider {str(provider)[:40]!r}; the nearest is {nearest}. "
                f"There are: {', '.join(PROVIDERS)}."
            )
        backend = "dial" if provider == "local" else provider
        result.put("backend", backend if backend in _OF_PROVIDER else "openai", "llm.provider", file)
        if provider == "local":
            result.put("core.model", "local", "llm.provider", file)
    shared = {key: value for key, value in llm.items() if key not in PROVIDERS and key != "provider"}
    _put_keys(shared, "llm", provider, result, file)
    for other in llm.keys() & PROVIDERS:  # another provider's section is checked and not used
        target = result if other == provider else Translated()
        _put_keys(_section(llm, other, file), f"llm.{other}", other, target, file)
    if provider is not None and (address := PROVIDERS[provider]) and "openai_base_url" not in result.content:
        result.put("openai_base_url", address, "llm.provider", file)


def _put_keys(keys: Mapping[str, Any], section: str, provider: str | None, result: Translated, file: str) -> None:
    for name, value in keys.items():
        key, target = f"{section}.{name}", MODEL_KEYS.get(name)
        if target is None:
            raise _unknown(key, [f"{section}.{known}" for known in (*MODEL_KEYS, "provider")], file)
        target = _OF_PROVIDER.get(provider or "", {}).get(target, target)
        if provider == "azure_openai" and target == "openai_base_url" and "/openai" not in str(value):
            value = f"{str(value).rstrip('/')}/openai/v1"
        result.put(target, value, key, file)


def _unknown(key: str, known: Iterable[str], file: str) -> SettingsError:
    nearest = get_close_matches(key, sorted(known), n=1, cutoff=0.0)[0]
    return SettingsError(f"{key} in {file} is not a setting; the nearest is {nearest}. Rename or remove it.")
