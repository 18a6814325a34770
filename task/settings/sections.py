"""The sections of the settings that describe tools, servers, limits, documents and local Core."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)


def _http_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it must be an address such as http://localhost:8080")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("the address must not hold a user name, a query or a fragment")
    if parts.port == 0:
        raise ValueError("port 0 is nobody's address")
    return text.rstrip("/")


def _server_url(text: str) -> str:
    if not text.startswith("toolset:"):
        return _http_url(text)
    if not text.removeprefix("toolset:").strip("/"):
        raise ValueError("a toolset has a name: toolset:NAME")
    return text


def _list(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [item.strip() for item in value.split(",") if item.strip()]


def _mapping(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("{"):
        return json.loads(value)
    pairs = [item.partition("=") for item in value.split(",") if item.strip()]
    if not all(separator for _, separator, _ in pairs):
        raise ValueError("it must be name=value pairs with commas between them")
    return {name.strip(): item.strip() for name, _, item in pairs}


def _check_schema(schema: dict[str, Any]) -> None:
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise ValueError(f"{error.json_path} is no JSON Schema: {error.message}") from None


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


HttpUrl = Annotated[str, AfterValidator(_http_url)]
Texts = Annotated[list[str], BeforeValidator(_list)]
Paths = Annotated[list[Path], BeforeValidator(_list)]
TextMap = Annotated[dict[str, str], BeforeValidator(_mapping)]
Folder = Annotated[Path, AfterValidator(Path.expanduser)]
Port = Annotated[int, Field(ge=0, le=65535)]
ServerUrl = Annotated[str, AfterValidator(_server_url)]
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], BeforeValidator(_upper)]


class LimitSettings(BaseModel):
    """How far one run may go and how much one file may weigh."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(default=15, ge=1, le=1000, description="Model requests with tools in one run.")
    tool_seconds: float = Field(default=300, gt=0, description="Seconds one tool call may take.")
    run_seconds: float = Field(
        default=1500, gt=0, description="Seconds one run may take; the key Core gives lives 1800."
    )
    run_tokens: int | None = Field(default=None, ge=1, description="Tokens one run may use; empty: no limit.")
    offload_chars: int = Field(
        default=40_000, ge=1000, description="Longer tool results are stored and read piece by piece."
    )
    max_upload_bytes: int = Field(default=50 * 2**20, ge=1, description="Largest file the agent uploads.")
    max_download_bytes: int = Field(default=10 * 2**20, ge=1, description="Largest file the agent downloads.")
    reader_processes: int = Field(default=2, ge=1, le=64, description="Documents read at a time, in a process each.")
    reader_seconds: float = Field(default=120, gt=0, description="Seconds that reading one document may take.")
    reader_bytes: int = Field(default=2**30, ge=2**27, description="Memory that reading one document may take.")


class DeploymentToolSettings(BaseModel):
    """One DIAL deployment that the agent's model may call as a tool."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    description: str = Field(min_length=1)
    deployment: str = Field(min_length=1)
    prompt: str = Field(default="prompt", pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    arguments: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    configuration: dict[str, Any] = Field(default_factory=dict[str, Any])
    attachments: list[str] = Field(default_factory=list[str])
    seconds: float = Field(default=120, gt=0, le=3600)

    @model_validator(mode="after")
    def _arguments_are_schemas(self) -> DeploymentToolSettings:
        if taken := {self.prompt, "file_urls"} & self.arguments.keys():
            raise ValueError(f"{self.name}: the argument {min(taken)} has another meaning already")
        if self.arguments:
            _check_schema({"type": "object", "properties": self.arguments})
        return self


DeploymentTools = Annotated[list[DeploymentToolSettings], BeforeValidator(_list)]


class DeploymentSettings(BaseModel):
    """DIAL deployments that serve the agent as tools."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str = Field(
        default="dall-e-3",
        min_length=1,
        description="Deployment behind `image_generation_tool`; `off`: the agent makes no pictures.",
    )
    image_seconds: float = Field(default=180, gt=0, le=3600, description="Seconds one picture may take.")
    tools: DeploymentTools = Field(
        default_factory=list[DeploymentToolSettings],
        description="Further deployments as tools, as a list of mappings; see [Tools](tools.md#deployments-as-tools).",
    )


class McpServerSettings(BaseModel):
    """One MCP server whose tools the agent offers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,32}$")
    url: ServerUrl
    token: SecretStr | None = None
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    tools: list[str] | None = None
    forward_key: bool = False
    seconds: float = Field(default=120, gt=0, le=3600)


McpServers = Annotated[list[McpServerSettings], BeforeValidator(_list)]


class InterpreterSettings(BaseModel):
    """The Python interpreter server (`dial-agent python-interpreter`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    port: Port = Field(default=8050, description="Port of the Python interpreter; 0: any free one.")
    python: Folder | None = Field(
        default=None, description="Python of the kernels' environment; empty: `.venv-kernel` beside the project."
    )
    seconds: float = Field(default=30, gt=0, le=3600, description="Seconds that code of one call may run.")
    sessions: int = Field(default=24, ge=1, description="Conversations whose variables are kept at a time.")
    idle_minutes: float = Field(default=30, gt=0, description="Minutes after which an unused session ends.")
    memory_mib: int = Field(default=2048, ge=256, description="Memory of one process, in MiB.")
    unsafe: bool = Field(default=False, description="Run code even where no sandbox works: it may do all you may.")


class RagSettings(BaseModel):
    """Search in documents (`rag_search_tool`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = Field(default=True, description="Offer the search in documents, where its libraries are installed.")
    deployment: str = Field(default="", description="Model that writes the answers; empty: `DEPLOYMENT_NAME`.")
    k: int = Field(default=3, ge=1, le=100, description="Chunks of 500 characters that an answer is always made from.")
    context_tokens: int = Field(
        default=1500, ge=100, description="Tokens of excerpts, filled with neighbours of the chunks and further chunks."
    )
    whole_tokens: int = Field(default=1500, ge=0, description="Shorter documents are read whole, without an index.")
    seconds: float = Field(default=900, gt=0, description="Seconds one search may take, indexing included.")
    max_chunks: int = Field(default=20_000, ge=1, description="Most chunks of one document; the rest is not searched.")
    cache_seconds: int = Field(default=86_400, ge=1, description="Seconds an index is kept.")
    cache_bytes: int = Field(default=256 * 2**20, ge=1, description="Memory all kept indexes may take together.")
    store_url: SecretStr | None = Field(
        default=None, description="Redis that keeps indexes for replicas and restarts: redis://host:6379/0."
    )
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="How the embedding model computes; `auto`: bfloat16 where the processor has it."
    )
    threads: int = Field(default=0, ge=0, description="Threads of the embedding process; 0: one for every core.")
    process_dir: Folder | None = Field(
        default=None,
        description="Folder of the embedding process's socket, shared by agents that share the process; empty: one of "
        "this user's in the temporary folder.",
    )

    @field_validator("store_url")
    @classmethod
    def _names_a_redis(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is None:
            return None
        parts = urlsplit(secret.get_secret_value())
        if not ((parts.scheme in ("redis", "rediss") and parts.hostname) or parts.scheme == "unix"):
            raise ValueError("it must be an address such as redis://localhost:6379/0")
        return secret


class LocalCoreSettings(BaseModel):
    """The local stand-in for DIAL Core (`dial-agent core`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(default="127.0.0.1", min_length=1, description="Address local Core listens on.")
    allow_public: bool = Field(
        default=False, description="Let local Core listen on an address other machines can reach."
    )
    core025: bool = Field(default=False, description="Behave like Core 0.25 where it differs from today's.")
    model: Literal["auto", "upstream", "local", "demo", "config"] = Field(
        default="auto",
        description="Models behind local Core: `auto` takes an upstream, else a running Ollama, else the model on this "
        "machine where there is one (`local`), else the demo; `config` serves those of Core's configuration.",
    )
    host_map: TextMap = Field(
        default_factory=lambda: {"agent": "127.0.0.1"},
        description="Hosts of the configuration's endpoints and where they are when run locally.",
    )
    allowed_hosts: Texts = Field(
        default_factory=list[str], description="Further names by which local Core may be called."
    )
    allowed_origins: Texts = Field(
        default_factory=list[str], description="Web origins that may call local Core from a browser."
    )
    data_dir: Folder | None = Field(
        default=None, description="Folder of local Core's files; empty: `core` in `AGENT_DATA_DIR`."
    )
    config_files: Paths = Field(
        default_factory=list[Path], description="Core's configuration files; empty: the product's own."
    )
