"""Every setting of the product as one tree, read from the environment, `.env` and a YAML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    SecretStr,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from task.settings.aliases import translated
from task.settings.document import expanded, read_document
from task.settings.framework import ConsoleSettings, ContextSettings, HistorySettings, ModelSettings, TepsSettings
from task.settings.http import HttpSettings
from task.settings.local_model import LocalModelSettings
from task.settings.permissions import PermissionSettings
from task.settings.sections import (
    DeploymentSettings,
    Folder,
    HttpUrl,
    InterpreterSettings,
    LimitSettings,
    LocalCoreSettings,
    LogLevel,
    McpServers,
    McpServerSettings,
    Port,
    RagSettings,
    Texts,
)
from task.settings.sources import CONFIG_VARIABLE, Sources, build, read_dotenv
from task.settings.store import Prices, PriceSettings, StoreSettings

PREFIX = "AGENT_"
DEFAULT_DOCUMENT = "dial-agent.yaml"
APPLICATION = "dial-agent"


class Settings(BaseSettings):
    """The whole tree. A bare `Settings()` holds the defaults and reads nothing; `load_settings` reads the sources."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", enable_decoding=False, extra="forbid", frozen=True
    )

    dial_endpoint: HttpUrl = Field(
        default="http://localhost:8080", validation_alias="dial_endpoint", description="DIAL Core, real or local."
    )
    deployment_name: str = Field(
        default="gpt-4o", validation_alias="deployment_name", min_length=1, description="Model the agent asks."
    )
    dial_api_key: SecretStr | None = Field(
        default=None,
        validation_alias="dial_api_key",
        description="Key for calls of Core outside a request; local Core makes its own when empty.",
    )
    openai_api_key: SecretStr | None = Field(
        default=None, validation_alias="openai_api_key", description="Key of an OpenAI-compatible upstream."
    )
    openai_base_url: HttpUrl | None = Field(
        default=None,
        validation_alias="openai_base_url",
        description="Address of an OpenAI-compatible upstream; with a key alone: https://api.openai.com/v1.",
    )
    ollama_local: HttpUrl = Field(
        default="http://127.0.0.1:11434",
        validation_alias="ollama_local",
        description="Where a running Ollama is looked for.",
    )
    pyinterpreter_mcp_url: HttpUrl | None = Field(
        default=None,
        validation_alias="pyinterpreter_mcp_url",
        description="MCP address of a Python interpreter server; `dial-agent up` starts its own when empty.",
    )
    ddg_mcp_url: HttpUrl | None = Field(
        default=None,
        validation_alias="ddg_mcp_url",
        description="MCP address of a search server; `dial-agent up` starts its own when empty.",
    )
    embedding_model: str = Field(
        default="",
        validation_alias="embedding_model",
        description="Folder or model hub name of a sentence-transformers model; empty: the installed all-MiniLM-L6-v2.",
    )
    mcp_token: SecretStr | None = Field(
        default=None,
        description="Bearer token of the interpreter and the search server; `dial-agent up` makes one. It is sent to "
        "this machine and to hosts without a dot in their name only.",
    )
    mcp_servers: McpServers = Field(
        default_factory=list[McpServerSettings],
        description="Further MCP servers, as a list of mappings; see [MCP servers](mcp.md).",
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="Address the agent listens on.")
    port: Port = Field(default=5030, description="Port the agent listens on; 0: any free one.")
    core_port: Port = Field(default=8080, description="Port local Core listens on; 0: any free one.")
    search_port: Port = Field(default=8051, description="Port of the search server; 0: any free one.")
    data_dir: Folder = Field(
        default=Path("~/.local/share") / APPLICATION,
        validate_default=True,
        description="Folder of the product's own files; under `XDG_DATA_HOME` where that is set.",
    )
    cache_dir: Folder = Field(
        default=Path("~/.cache") / APPLICATION,
        validate_default=True,
        description="Folder of what can be downloaded again; under `XDG_CACHE_HOME` where that is set.",
    )
    log_level: LogLevel = Field(
        default="INFO", description="Least severe log lines shown: DEBUG, INFO, WARNING or ERROR."
    )
    heartbeat_seconds: float = Field(
        default=15, gt=0, description="Seconds of silence after which a stream gets a heartbeat."
    )
    shutdown_seconds: int = Field(
        default=10,
        ge=0,
        description="Seconds that answers under way get when the agent is told to end; `dial-agent up` gives them 3.",
    )
    backend: Literal["dial", "openai"] = Field(
        default="dial",
        description="How the agent reaches its model: through DIAL Core, or an OpenAI-compatible upstream.",
    )
    fast_chunks: bool = Field(
        default=True,
        description="Write answers with less work per chunk than the DIAL SDK's own route; off: the SDK's route.",
    )
    profile: str | None = Field(
        default=None, description="Name of the model's profile; empty: found from the model's name."
    )
    temperature: float | None = Field(default=None, ge=0, le=2, description="Temperature of the model; empty: its own.")
    system_prompt: str | None = Field(default=None, description="System prompt in place of the product's own.")
    tool_paths: Texts = Field(
        default_factory=list[str],
        description="Further tools: `package.module:attribute` or a `.py` file, with commas between them.",
    )
    state_secret: SecretStr | None = Field(
        default=None,
        description="Signs the hidden state; the same on every replica. Empty: made once per installation.",
    )
    errors_in_stream: bool = Field(
        default=False, description="Report a caller's mistakes inside the stream (Core <= 0.25)."
    )
    trace_content: bool = Field(
        default=False,
        validation_alias="trace_content",
        description="Keep the texts of DIAL conversations in traces, not only names, sizes, times and tokens.",
    )
    prices: Prices = Field(
        default_factory=dict[str, PriceSettings],
        description="Price of a million tokens by model, as a mapping: `{gpt-4o: {prompt: 2.5, completion: 10}}`.",
    )
    store: StoreSettings = StoreSettings()
    http: HttpSettings = HttpSettings()
    limits: LimitSettings = LimitSettings()
    deployments: DeploymentSettings = DeploymentSettings()
    interpreter: InterpreterSettings = InterpreterSettings()
    rag: RagSettings = RagSettings()
    local_model: LocalModelSettings = LocalModelSettings()
    core: LocalCoreSettings = LocalCoreSettings()
    llm: ModelSettings = ModelSettings()
    context: ContextSettings = ContextSettings()
    history: HistorySettings = HistorySettings()
    permissions: PermissionSettings = PermissionSettings()
    teps: TepsSettings = TepsSettings()
    console: ConsoleSettings = ConsoleSettings()

    @property
    def store_options(self) -> dict[str, Any]:
        """The store's address, retention and prices, as `task.store.access.StoreAccess` takes them."""
        chosen, url = self.store, self.store.url
        return {
            "url": url.get_secret_value() if url is not None else f"sqlite:///{self.data_dir / 'store.db'}",
            "days": chosen.days,
            "sessions": chosen.sessions,
            "traces": chosen.traces,
            "spans_url": chosen.spans_url,
            "prices": {model: (price.prompt, price.completion) for model, price in self.prices.items()},
        }

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def load_settings(
    config: Path | None = None,
    environ: Mapping[str, str] | None = None,
    directory: Path | None = None,
    given: Mapping[str, Any] | None = None,
) -> Settings:
    """The settings of this process; `given` (a command's options) beats environment beats `.env` beats the YAML file.

    The YAML file is `config`, else the one `AGENT_CONFIG` names, else `dial-agent.yaml` in `directory`, where `.env`
    is looked for as well; `directory` is the working directory unless given, `environ` the process's environment.

    Raises:
        SettingsError: a file cannot be read, a name is unknown, or a value is malformed; one line with the mend.
    """
    environment = os.environ if environ is None else environ
    folder = directory or Path.cwd()
    dotenv = read_dotenv(folder / ".env")
    named = config or environment.get(CONFIG_VARIABLE) or dotenv.get(CONFIG_VARIABLE)
    document = folder / (named or DEFAULT_DOCUMENT)
    name = str(named or DEFAULT_DOCUMENT)
    told = translated(read_document(document) if named or document.is_file() else {}, name)
    sources = Sources(given or {}, environment, dotenv, told.content, name, told.spelled)
    content, hidden = expanded(told.content, {**dotenv, **environment}, sources.spelling, name)
    sources = replace(sources, document=content, expanded=hidden)
    return build(Settings, sources, PREFIX, _home(environment))


def process_environment() -> dict[str, str]:
    """A copy of this process's environment, for the processes it starts and the templates it fills."""
    return dict(os.environ)


def _home(environment: Mapping[str, str]) -> dict[str, Any]:
    places = {"data_dir": ("XDG_DATA_HOME", ".local/share"), "cache_dir": ("XDG_CACHE_HOME", ".cache")}
    found: dict[str, Any] = {}
    for name, (variable, below_home) in places.items():
        if given := environment.get(variable):
            found[name] = Path(given) / APPLICATION
        elif home := environment.get("HOME"):
            found[name] = Path(home) / below_home / APPLICATION
    return found
