"""ConfigurationManager: the framework's view of the one settings tree."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from functools import reduce
from pathlib import Path
from typing import Any, cast

from task.errors import ConfigError, SettingsError
from task.product.backends import BACKENDS
from task.settings import Settings, load_settings
from task.settings.document import ALIASES, translated
from task.tools.toolbox import TOOL_SECONDS


class ConfigurationManager:
    """Loads and validates the configuration. Source: framework reference, Configuration.

    Without a path it reads what every command reads: environment, `.env`, and the settings file there is. Environment
    and `.env` win over the file. `complete` adds what the settings leave open, such as the model. `foreign`: another
    user may have written the working directory; see `load_settings`.

    Raises:
        ConfigError: the configuration cannot be loaded or is not valid.
    """

    def __init__(
        self,
        config_path: str | None = None,
        *,
        complete: Callable[[Settings], Settings] = lambda settings: settings,
        foreign: bool = False,
    ) -> None:
        self._path, self._complete, self._foreign = config_path, complete, foreign
        self.reload()

    def load_config(self, config_path: str) -> dict[str, Any]:
        """Read another file in place of the first one, and give its settings in the documented shape.

        Raises:
            ConfigError: it cannot be loaded or is not valid; what was there stays.
        """
        with _config_errors():
            settings = load_settings(Path(config_path), foreign=self._foreign)
        self._path, self.settings = config_path, self._complete(settings)
        provider = self.get_llm_provider()
        return {
            "framework": self._section("framework"),
            "llm": {"provider": provider, provider: self.get_llm_settings()},
            "teps": self.get_teps_settings(),
            "message_history": self.get_message_history_settings(),
            "ui": self.get_ui_settings(),
            "dcm": {
                **self._section("dcm"),
                "context_definition_path": self.get_context_definition_path(),
                "document_cache_enabled": self.settings.context.cached_documents > 0,
            },
            "advanced": {**self._section("advanced"), "max_retries": self.settings.llm.attempts - 1},
        }

    def _section(self, section: str) -> dict[str, Any]:
        found = dict[str, Any]()
        for key, path in ALIASES.items():
            if key.startswith(f"{section}."):
                value = reduce(getattr, path.split("."), cast("Any", self.settings))
                found[key.removeprefix(f"{section}.")] = str(value) if isinstance(value, Path) else value
        return found

    def reload(self) -> None:
        """Read the same sources again.

        Raises:
            ConfigError: one cannot be loaded or is not valid; what was there stays.
        """
        with _config_errors():
            settings = load_settings(Path(self._path) if self._path else None, foreign=self._foreign)
        self.settings = self._complete(settings)

    def get_llm_provider(self) -> str:
        """The provider's name: `dial`, `ollama`, `dapr`, `openai`, `gemini`, `anthropic` or `azure_openai`."""
        return BACKENDS[self.settings.backend].name(self.settings)

    def get_llm_settings(self) -> dict[str, Any]:
        """Model, key, address and parameters of the provider in use; the key in clear text."""
        settings, model = self.settings, self.settings.llm
        key, address = BACKENDS[settings.backend].credentials(settings)
        return {
            "model": settings.deployment_name,
            "api_key": key.get_secret_value() if key else None,
            "base_url": address,
            "temperature": settings.temperature,
            "max_tokens": model.max_tokens,
            "top_p": model.top_p,
            "top_k": model.top_k,
        }

    def get_context_definition_path(self) -> str:
        """The path of FRAMEWORK_CONTEXT.md; empty where none is configured."""
        return str(self.settings.context.definition_path or "")

    def get_teps_settings(self) -> dict[str, Any]:
        """What the tools may do; `tool_timeout` in milliseconds."""
        teps = self.settings.teps.model_dump(mode="json")
        return {**teps, "tool_timeout": (self.settings.limits.tool_seconds or TOOL_SECONDS) * 1000}

    def get_message_history_settings(self) -> dict[str, Any]:
        """The configuration that `MessageManager` takes."""
        return self.settings.history.model_dump(exclude_none=True)

    def get_ui_settings(self) -> dict[str, Any]:
        return self.settings.console.model_dump(exclude={"name", "version", "state_file"})


def teps_tree(teps_settings: Mapping[str, Any]) -> Settings:
    """The settings that every command reads, with these in the documented shape for `teps`.

    Raises:
        ConfigError: a key is unknown, or a value is malformed.
    """
    return _tree("teps", {name: value for name, value in teps_settings.items() if value is not None})


def model_tree(provider: str, llm_settings: Mapping[str, Any]) -> Settings:
    """The same with this provider, and its settings in the documented shape.

    Raises:
        ConfigError: there is no such provider, a key is unknown, or a value is malformed.
    """
    own = {name: value for name, value in llm_settings.items() if value is not None}
    return _tree("llm", {"provider": provider, provider: own})


def _tree(section: str, content: Mapping[str, Any]) -> Settings:
    with _config_errors():
        return load_settings(given=translated({section: content}, section).content)


@contextmanager
def _config_errors() -> Generator[None]:
    try:
        yield
    except SettingsError as error:
        raise ConfigError(str(error)) from error
