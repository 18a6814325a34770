"""Every setting of the product as one tree."""

from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import PrivateAttr, SecretStr

from task.settings import dial, framework, sections
from task.settings.values import (
    AsJson,
    Folder,
    HttpUrl,
    Listed,
    LogLevel,
    Port,
    RedisUrl,
    Section,
    Texts,
    TimeZone,
    bare,
    setting,
)

PREFIX = "AGENT_"
_Hosted = Literal["generic", "openai", "reasoning", "azure", "gemini", "anthropic", "deepseek", "thinking", "basic"]
_Local = Literal["ollama", "lm-studio", "llama.cpp", "vllm"]
ProfileName = Literal[_Hosted, _Local]
APPLICATION = "dial-agent"


class Settings(Section):
    """The whole tree. A bare `Settings()` holds the defaults and reads nothing; `load_settings` reads the sources."""

    dial_endpoint: HttpUrl = bare("http://localhost:8080", "DIAL Core, real or local.")
    deployment_name: str = bare("gpt-4o", "Model the agent asks.", min_length=1)
    dial_api_key: SecretStr | None = bare(None, "Key for calls of Core outside a request; empty: local Core's own.")
    openai_api_key: SecretStr | None = bare(None, "Key of an OpenAI-compatible upstream.")
    openai_base_url: HttpUrl | None = bare(None, "OpenAI-compatible upstream; with a key alone: api.openai.com.")
    ollama_local: HttpUrl = bare("http://127.0.0.1:11434", "Ollama's address, where `dial-agent up` looks for it.")
    ollama_api_key: SecretStr | None = bare(None, "Key of Ollama's cloud; it is sent to `TURBO_HOST` only.")
    turbo_host: HttpUrl = bare("https://ollama.com", "Ollama host of the planner; it gets `OLLAMA_API_KEY`.")
    dapr_grpc_endpoint: str | None = bare(None, "Dapr sidecar: `host:port`, `?tls=true` for TLS; empty: this machine.")
    dapr_grpc_port: Port = bare(50_001, "Port of the Dapr sidecar on this machine.")
    dapr_api_token: SecretStr | None = bare(None, "Token that the Dapr sidecar was started with.")
    planner_model: str = bare("gpt-oss:20b", "Ollama model that plans a coding run, or `backend:model`.", min_length=1)
    coder_model: str = bare("qwen2.5-coder", "Ollama model that carries a plan out, or `backend:model`.", min_length=1)
    max_steps: int = bare(25, "Model requests with tools in one coding run.", ge=1, le=1000)
    request_timeout_s: int = bare(120, "Seconds a model of a coding run may be silent.", ge=1, le=86_400)
    dry_run: bool = bare(False, "Never let a coding run change anything, also with `--apply`.")
    pyinterpreter_mcp_url: HttpUrl | None = bare(None, "MCP address of a Python interpreter; empty: `up` starts one.")
    ddg_mcp_url: HttpUrl | None = bare(None, "MCP address of a search server; empty: `dial-agent up` starts one.")
    embedding_model: str = bare("", "Whole path or hub name of a sentence-transformers model; empty: the packaged.")
    otel_exporter_otlp_endpoint: HttpUrl | None = bare(
        None, "Collector of spans, such as http://host:4318; needs `otel`: see [Observability](observability.md)."
    )
    otel_exporter_otlp_traces_endpoint: HttpUrl | None = bare(None, "Whole address for spans, in place of that one.")
    mcp_token: SecretStr | None = setting(
        None, "Token of the interpreter and the search server, sent to this machine and hosts without a dot only."
    )
    mcp_servers: Annotated[list[sections.McpServerSettings], Listed] = setting(
        [], "Further MCP servers, as a list of mappings; see [MCP servers](mcp.md)."
    )
    openapi: Annotated[list[sections.OpenApiSettings], AsJson] = setting(
        [], "APIs whose operations are tools, a list of mappings; see [Tools](tools.md#openapi-documents)."
    )
    host: str = setting("127.0.0.1", "Address the agent listens on.", min_length=1)
    port: Port = setting(5030, "Port the agent listens on; 0: any free one.")
    workers: int = setting(1, "Processes behind the agent's port; at most one per core helps.", ge=1, le=64)
    core_port: Port = setting(8080, "Port local Core listens on; 0: any free one.")
    search_port: Port = setting(8051, "Port of the search server; 0: any free one.")
    data_dir: Folder = setting(
        Path("~/.local/share") / APPLICATION, "Folder of own files; see `XDG_DATA_HOME`.", validate_default=True
    )
    cache_dir: Folder = setting(
        Path("~/.cache") / APPLICATION, "Folder of downloads; see `XDG_CACHE_HOME`.", validate_default=True
    )
    log_level: LogLevel = setting("INFO", "Least severe log lines shown: DEBUG, INFO, WARNING or ERROR.")
    log_file: Folder | None = setting(None, "File to which the agent's log is appended; empty: standard error.")
    log_format: Literal["text", "json"] = setting("text", "`json`: objects with request id, reference and trace id.")
    heartbeat_seconds: float = setting(15, "Seconds of silence after which a stream gets a heartbeat.", gt=0)
    keep_alive_seconds: int = setting(
        330,
        "Seconds for which servers keep idle connections; DIAL Core, which keeps its own for 300, must close first.",
        ge=5,  # longer than `task.llm.transport.KEEP_ALIVE_SECONDS`, so that the product's own clients let go first
    )
    shutdown_seconds: int = setting(10, "Seconds that answers get when the agent is stopped; with `up` 3.", ge=0)
    backend: Literal["dial", "openai", "ollama", "dapr"] = setting(
        "dial", "How the agent reaches its model: DIAL Core, an OpenAI-compatible upstream, Ollama, a Dapr sidecar."
    )
    dial_body_bytes: int = setting(32 * 2**20, "Largest request body at the DIAL route, pictures included.", ge=1024)
    fast_chunks: bool = setting(True, "Write answers by our own fast route; off: the DIAL SDK's route.")
    profile: ProfileName | None = setting(
        None, "The model's profile: " + ", ".join(get_args(ProfileName)) + "; empty: found from its name."
    )
    temperature: float | None = setting(None, "Temperature of the model; empty: its own.", ge=0, le=2)
    system_prompt: str | None = setting(None, "System prompt in place of the product's own.")
    annotations: bool = setting(True, "Citations in the text too, for DIAL Chat 1.x; off: attachments only.")
    timezone: TimeZone = setting("UTC", "Time zone of callers whose client names none in `X-Timezone`.")
    tool_paths: Texts = setting([], "Further tools: `package.module:attribute` or `.py` files, with commas.")
    state_secret: SecretStr | None = setting(None, "Signs hidden state, on every replica the same; empty: made once.")
    errors_in_stream: bool = setting(False, "For Core 0.25 and older: report mistakes of callers inside the stream.")
    trace_content: bool = bare(False, "Keep the texts of DIAL conversations in traces too.")
    redis_url: RedisUrl | None = setting(
        None,
        "Redis that agents share: redis://host:6379/0, rediss://…, unix://…; see [Operations](operations.md#redis).",
    )
    prices: Annotated[dict[str, sections.PriceSettings], AsJson] = setting(
        {}, "Prices of a million tokens: `{gpt-4o: {prompt: 2.5, completion: 10}}`."
    )
    store: sections.StoreSettings = sections.StoreSettings()
    memory: sections.MemorySettings = sections.MemorySettings()
    metrics: sections.MetricsSettings = sections.MetricsSettings()
    http: sections.HttpSettings = sections.HttpSettings()
    limits: sections.LimitSettings = sections.LimitSettings()
    deployments: dial.DeploymentSettings = dial.DeploymentSettings()
    applications: dial.ApplicationSettings = dial.ApplicationSettings()
    tool_search: sections.ToolSearchSettings = sections.ToolSearchSettings()
    agents: sections.AgentSettings = sections.AgentSettings()
    interpreter: sections.InterpreterSettings = sections.InterpreterSettings()
    rag: sections.RagSettings = sections.RagSettings()
    dial_files: dial.DialFilesSettings = dial.DialFilesSettings()
    local_model: sections.LocalModelSettings = sections.LocalModelSettings()
    ollama: sections.OllamaSettings = sections.OllamaSettings()
    dapr: sections.DaprSettings = sections.DaprSettings()
    core: sections.LocalCoreSettings = sections.LocalCoreSettings()
    llm: framework.ModelSettings = framework.ModelSettings()
    context: framework.ContextSettings = framework.ContextSettings()
    history: framework.HistorySettings = framework.HistorySettings()
    permissions: sections.PermissionSettings = sections.PermissionSettings()
    coding: sections.CodingSettings = sections.CodingSettings()
    skills: sections.SkillSettings = sections.SkillSettings()
    teps: framework.TepsSettings = framework.TepsSettings()
    console: framework.ConsoleSettings = framework.ConsoleSettings()
    _for_the_console: tuple[str, ...] = PrivateAttr(())
    _ignored: tuple[str, ...] = PrivateAttr(())
    _files: tuple[Path, ...] = PrivateAttr(())

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the settings were read from."""
        return self._files

    @property
    def ignored(self) -> tuple[str, ...]:
        """What was left out of the working directory's own files: it could run code or send data elsewhere."""
        return self._ignored

    @property
    def for_the_console(self) -> tuple[str, ...]:
        """The settings that a source gives and that have an effect in the console only, each with that source."""
        return self._for_the_console

    @property
    def store_options(self) -> dict[str, Any]:
        """The arguments of `task.store.access.StoreOptions`."""
        url = self.store.url
        return {
            **self.store.model_dump(),
            "url": url.get_secret_value() if url is not None else f"sqlite:///{self.data_dir / 'store.db'}",
            "shared": self.workers > 1,
            "data_dir": self.data_dir,
            "prices": {model: (price.prompt, price.completion) for model, price in self.prices.items()},
        }
