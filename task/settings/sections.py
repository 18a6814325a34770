"""The product's sections of the settings: limits, servers, search, store, HTTP API, permissions and local Core."""

from typing import Annotated, Literal, Self

from pydantic import Field, SecretStr, model_validator

from task.settings.values import (
    AsJson,
    Commands,
    EmbeddingsPlace,
    Folder,
    HttpUrl,
    Listed,
    Origins,
    Paths,
    Port,
    PostgresUrl,
    SecretPlace,
    Section,
    ServerUrl,
    StoreUrl,
    TextMap,
    Texts,
    WholePath,
    setting,
)


class LimitSettings(Section):
    """How far one run may go and how much one file may weigh."""

    steps: int = setting(15, "Model requests with tools in one run.", ge=1, le=1000)
    tool_seconds: float | None = setting(None, "Seconds any tool call may take; empty: its own, else 300.", gt=0)
    run_seconds: float = setting(1500, "Seconds one run with its calls may take; the key of Core lives 1800.", gt=0)
    run_tokens: int | None = setting(None, "Tokens one run may use; empty: no limit.", ge=1)
    offload_chars: int = setting(40_000, "Longer results and arguments of tools are stored and read in parts.", ge=1000)
    max_upload_bytes: int = setting(50 * 2**20, "Largest file the agent uploads.", ge=1)
    max_download_bytes: int = setting(10 * 2**20, "Largest file the agent downloads.", ge=1)
    reader_processes: int = setting(
        3, "Documents read at a time, in a process each; one user has half of them, rounded up.", ge=1, le=64
    )
    reader_seconds: float = setting(
        120, "Seconds that reading a document of 3.5 MiB or more may take; a small one may take an eighth.", gt=0
    )
    reader_bytes: int = setting(2**30, "Memory that reading one document may take.", ge=2**27)


class AgentSettings(Section):
    """Sub-agents, to which the model gives parts of its work; see [Sub-agents](skills.md#sub-agents)."""

    enabled: bool = setting(False, "Offer `delegate`; never to the packaged model, or one with less than 8,000 tokens.")
    steps: int = setting(60, "Model requests with tools of all sub-agents of one run together.", ge=1, le=1000)
    models: Texts = setting([], "Models that sub-agents may have beside the one that delegates.")


class McpServerSettings(Section):
    """One MCP server whose tools the agent offers: at a `url`, or a `command` that is started in the sandbox.

    `read`, `write` and `hosts` are all that a command may read, change and reach besides the system and its program.
    """

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,32}$")
    url: ServerUrl | None = None
    token: SecretStr | None = None
    headers: dict[str, str] = Field({})
    command: str | None = Field(default=None, min_length=1)
    args: list[str] = Field([])
    env: dict[str, SecretStr] = Field({})
    read: list[Folder] = Field([])
    write: list[Folder] = Field([])
    hosts: list[str] = Field([])
    tools: list[str] | None = None
    forward_key: bool = False
    sign_in: bool = False
    seconds: float = Field(default=120, gt=0, le=3600)

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if (self.url is None) == (self.command is None):
            raise ValueError("a server has either a `url` or a `command`: give one of them")
        of_urls, of_commands = {"token", "headers", "forward_key", "sign_in"}, {"args", "env", "read", "write", "hosts"}
        if wrong := sorted(self.model_fields_set & (of_urls if self.command else of_commands)):
            kind = "command" if self.command else "url"
            raise ValueError(f"`{wrong[0]}` does not go with a `{kind}`: remove it")
        if self.sign_in and (self.token or self.forward_key or (self.url or "").startswith("toolset:")):
            raise ValueError("`sign_in` needs a `url` that is not a toolset, and neither `token` nor `forward_key`")
        return self


class ToolSearchSettings(Section):
    """Which tools are sent with every request, where there are many; see [Many tools](tools.md#many-tools)."""

    share: float = setting(
        0.05, "Part of the model's window for tools of servers; above it `find_tools` finds them.", ge=0, le=1
    )


class OpenApiSettings(Section):
    """An API whose operations the agent offers, as its OpenAPI `document` describes them: a path, URL or file in DIAL.

    `secret` is the name of an environment variable or the path of a file, never the value; `auth` is `bearer` or the
    name of the header in which it is sent. `hosts` may be internal ones, and may get it.
    """

    name: str = Field(pattern=r"^[a-zA-Z0-9_-]{1,32}$")
    document: HttpUrl | Annotated[str, Field(pattern=r"^(/|files/)")]
    tags: list[str] = Field([])
    operations: list[str] = Field([])
    secret: SecretPlace = ""
    auth: str = Field(default="bearer", pattern=r"^[a-zA-Z0-9-]{1,64}$")
    hosts: list[Annotated[str, Field(pattern=r"^[a-z0-9.:-]+$")]] = Field([])
    seconds: float = Field(default=60, gt=0, le=3600)


class InterpreterSettings(Section):
    """The Python interpreter server (`dial-agent python-interpreter`)."""

    port: Port = setting(8050, "Port of the Python interpreter; 0: any free one.")
    python: Folder | None = setting(
        None, "Python of the kernels; empty: made in `AGENT_DATA_DIR`, in a clone in `.venv-kernel`."
    )
    seconds: float = setting(30, "Seconds that code of one call may run.", gt=0, le=3600)
    sessions: int = setting(128, "Conversations whose variables are kept at a time.", ge=1)
    running: int = setting(24, "Calls that run at a time, of one user at most half; others wait.", ge=1)
    idle_minutes: float = setting(30, "Minutes after which an unused session ends.", gt=0)
    memory_mib: int = setting(2048, "Memory of one process, in MiB.", ge=256)
    drain_seconds: float = setting(
        0, "Seconds that running calls have after SIGTERM, while new ones are refused; 0: none.", ge=0
    )
    unsafe: bool = setting(False, "Run code even where no sandbox works, with all your rights: each call asks.")


class RagSettings(Section):
    """Search in documents (`rag_search_tool`)."""

    enabled: bool = setting(True, "Offer the search in documents.")
    deployment: str = setting("", "Model that writes the answers; empty: `DEPLOYMENT_NAME`.")
    reranker: str = setting("", "Model that orders the ten best chunks of a search, in one short request; empty: none.")
    cross_encoder: str = setting("", "Whole path or hub name of a cross-encoder for the ten best chunks; an extra.")
    k: int = setting(3, "Chunks of 500 characters that an answer is always made from.", ge=1, le=100)
    context_tokens: int = setting(1500, "Tokens of excerpts: the chunks, their neighbours, further chunks.", ge=100)
    whole_tokens: int = setting(1500, "Shorter documents are read whole, without an index.", ge=0)
    seconds: float = setting(900, "Seconds one search may take, indexing included.", gt=0)
    max_chunks: int = setting(20_000, "Most chunks of one document; the rest is not searched.", ge=1)
    cache_seconds: int = setting(86_400, "Seconds that the text of a document and its index are kept.", ge=1)
    cache_bytes: int = setting(256 * 2**20, "Memory all kept indexes may take together.", ge=1)
    weights: Folder | None = setting(
        None, "Folder of the packaged embedding model; empty: `embedding` in `AGENT_DATA_DIR`, in a clone `.embedding`."
    )
    embeddings: EmbeddingsPlace = setting(
        "", "What makes the vectors: a deployment, or https://host/v1/embeddings; empty: the packaged model."
    )
    embeddings_model: str = setting("", "Model at the address of `AGENT_RAG__EMBEDDINGS`.")
    embeddings_key: SecretStr | None = setting(None, "Key for that address, sent as a bearer token; empty: none.")
    embeddings_batch: int = setting(64, "Most texts in one request for embeddings; halved if refused.", ge=1, le=2048)
    index_url: PostgresUrl | None = setting(
        None, "PostgreSQL with pgvector for the vectors: postgresql://user:password@host/name; empty: in memory."
    )
    precision: Literal["auto", "float32", "bfloat16"] = setting(
        "auto", "How the embedding model computes; `auto`: in what the processor is fastest in."
    )
    threads: int = setting(0, "Threads of the embedding model; 0: one for every core.", ge=0)

    @model_validator(mode="after")
    def _names_the_model(self) -> Self:
        if "://" in self.embeddings and not self.embeddings_model:
            raise ValueError(
                "AGENT_RAG__EMBEDDINGS is an address, so AGENT_RAG__EMBEDDINGS_MODEL has to name its model"
            )
        return self


class PriceSettings(Section):
    """What a million tokens of one model cost."""

    prompt: float = Field(ge=0)
    completion: float = Field(ge=0)


class StoreSettings(Section):
    """The database of sessions, runs, traces, approvals and keys."""

    url: StoreUrl | None = setting(
        None, "`sqlite:///folder/file.db` or `postgresql://user:password@host/name`; empty: `store.db` in the data."
    )
    migrate: bool = setting(True, "Upgrade an older store at the start; `off`: `dial-agent store migrate` does.")
    days: float = setting(30, "Days that sessions and traces are kept after their last use.", gt=0)
    sessions: int = setting(10_000, "Most sessions kept; the last used stay.", ge=1)
    traces: int = setting(100_000, "Most traces kept, and most runs; the newest stay.", ge=1)


class MemorySettings(Section):
    """What users may let the agent remember about them; see [Memory](sessions.md#memory)."""

    enabled: bool = setting(False, "Let users switch on a memory of their own; off: there is none for any user.")
    tokens: int = setting(500, "Tokens of remembered facts that one turn gets.", ge=100, le=10_000)
    server: str = setting("", "MCP server whose tools remember in place of our own, by its name; empty: our own.")


class MetricsSettings(Section):
    """What Prometheus reads; see [Observability](observability.md)."""

    enabled: bool = setting(True, "Count what the agent does, and answer `/metrics`.")
    port: Port | None = setting(None, "A further port for `/metrics` alone: 9464 in DIAL's charts; empty: none.")


class HttpSettings(Section):
    """The HTTP API and the web page; see [HTTP API](http-api.md)."""

    mode: Literal["open", "keys", "dial"] = setting(
        "open", "Who may call: `open` this machine, `keys` owners of `dial-agent keys`, `dial` callers of DIAL Core."
    )
    request_keys: bool = setting(
        False, "Below `/openai` take per-request keys of DIAL Core only; `up` sets it for a Core that it starts."
    )
    ui: bool = setting(True, "Serve the web page at `/`.")
    origins: Texts = setting([], "Web origins of others that may call the HTTP API from a browser.")
    hosts: Texts = setting([], "Further names by which the HTTP API may be called in the mode `open`.")
    editor_origins: Origins = setting(
        [], "Origins of DIAL Chat that may show the [editor of applications](dial.md#the-editor); empty: none may."
    )
    editor_core: HttpUrl | None = setting(
        None, "Address of DIAL Core for browsers, where the editor saves; empty: that of `DIAL_ENDPOINT`."
    )
    requests_per_minute: int = setting(600, "Requests of one key in a minute.", ge=1)
    runs_per_caller: int = setting(
        100, "Runs that one caller may have in progress, over all agents of the store; with DIAL in each.", ge=1
    )
    body_bytes: int = setting(8 * 2**20, "Largest request body, files aside.", ge=1024)
    steps: int = setting(10, "Model requests with tools in one run of the HTTP API.", ge=1, le=1000)
    transcription: str | None = setting(
        None,
        "A deployment that writes down speech, for a microphone button on the page: with `AGENT_BACKEND=dial` a chat "
        "model that takes sound, with `openai` one of `/audio/transcriptions`.",
        min_length=1,
    )
    detach_seconds: float = setting(120, "Seconds a run in a session continues without a listener.", ge=0)
    titles: str = setting(
        "model", "Who names a conversation: `model` the one that answers, `off` none, or a deployment.", min_length=1
    )


class RuleSettings(Section):
    """One rule; what it leaves out fits every call."""

    action: Literal["allow", "deny", "ask"]
    tool: str = Field(default="*", min_length=1)
    effects: frozenset[Literal["read", "write", "execute", "network"]] | None = None
    path: str | None = Field(default=None, min_length=1)
    command: Commands = ()
    host: str | None = Field(default=None, min_length=1)
    known_url: bool | None = None
    trusted: bool = False

    @model_validator(mode="after")
    def _trust_allows(self) -> Self:
        if self.trusted and self.action != "allow":
            raise ValueError("only a rule that allows can be trusted")
        return self


class PermissionSettings(Section):
    """What the agent may do without asking; see [Permissions](permissions.md)."""

    rules: Annotated[list[RuleSettings], AsJson] = setting(
        [], "Rules before the product's own, a list; see [Permissions](permissions.md#rules)."
    )
    default_rules: bool = setting(True, "Add the product's own rules after these; off: what no rule fits is asked.")
    tools: Texts | None = setting(None, "Names of the tools that are offered and may be called; not set: all.")
    link_hosts: Texts = setting([], "Hosts (globs) to which links and pictures in answers may lead in any case.")
    open_minutes: float = setting(60, "Minutes for which an approval can be given.", gt=0, le=1440)
    grant_hours: float = setting(24, 'Hours for which "always" holds in a conversation.', gt=0)


class WorkspaceSettings(Section):
    """A folder in which the agent works for these owners."""

    path: WholePath
    owners: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class CodingSettings(Section):
    """Workspaces for the HTTP API and DIAL, and commands; see [Permissions](permissions.md#workspaces)."""

    workspaces: Annotated[list[WorkspaceSettings], AsJson] = setting(
        [], "Folders in which the named owners get the workspace tools: a list of `path` and `owners`."
    )
    apply: bool = setting(False, "Change such a folder without a question, like `run --apply`; off: ask.")
    command_seconds: float = setting(60, "Seconds one command of a workspace or of `run` may take.", gt=0, le=3600)
    command_memory_mib: int = setting(4096, "Memory of one command with all it starts, in MiB.", ge=256)


class SkillSettings(Section):
    """Instructions for kinds of tasks, which the model reads on demand; see [Skills](skills.md)."""

    folders: Annotated[list[Folder], Listed] = setting([], "Folders whose folders are your skills; read at the start.")
    workspace: bool = setting(True, "Ask at a terminal about `.agents/skills` of the folder, and use it then.")


class LocalCoreSettings(Section):
    """The local stand-in for DIAL Core (`dial-agent core`)."""

    host: str = setting("127.0.0.1", "Address local Core listens on.", min_length=1)
    allow_public: bool = setting(False, "Let local Core listen on an address other machines can reach.")
    core025: bool = setting(False, "Behave like Core 0.25 where it differs from today's.")
    model: Literal["auto", "upstream", "ollama", "local", "demo", "config"] = setting(
        "auto",
        "Models behind local Core: `auto` takes an upstream, else a running Ollama (`ollama`), else the model on this "
        "machine where there is one (`local`), else the demo; `config` serves those of Core's configuration.",
    )
    host_map: TextMap = setting(
        dict.fromkeys(("agent", "python-interpreter", "search"), "127.0.0.1"),
        "Hosts of the configuration's endpoints and where they are when run locally.",
    )
    allowed_hosts: Texts = setting([], "Further names by which local Core may be called.")
    allowed_origins: Texts = setting([], "Web origins that may call local Core from a browser.")
    data_dir: Folder | None = setting(None, "Folder of local Core's files; empty: `core` in `AGENT_DATA_DIR`.")
    config_files: Paths = setting([], "Core's configuration files; empty: the product's own.")


class LocalModelSettings(Section):
    """The model that local Core runs on this machine (`dial-agent model`)."""

    file: Folder | None = setting(None, "GGUF file of your own model; empty: what `dial-agent model pull` gets.")
    folder: Folder | None = setting(None, "Folder of downloaded models; empty: `models` in the user's cache folder.")
    context_tokens: int = setting(8192, "Tokens the model reads at a time; more take more memory.", ge=2048, le=2**20)
    answer_tokens: int = setting(1024, "Longest answer, unless the request names a limit.", ge=64)
    threads: int = setting(0, "Threads of the model; 0: one for every core.", ge=0, le=1024)
    queue: int = setting(8, "Requests that may wait while one is answered.", ge=0, le=1000)


class OllamaSettings(Section):
    """How Ollama runs the models it serves; see [Ollama](models.md#ollama)."""

    context_tokens: int | None = setting(
        None, "Most tokens of context; empty: 1,024 for each GiB of memory, 8,192 to 65,536.", ge=2048, le=2**24
    )
    keep_alive: str | None = setting(
        None,
        "How long a model stays loaded after a request: `30m`, seconds, or `-1` for ever; empty: as Ollama is set up.",
        pattern=r"^-?\d+(\.\d+)?(ms|s|m|h)?$",
    )


class DaprSettings(Section):
    """Which component of a Dapr sidecar answers; see [Dapr](models.md#dapr)."""

    component: str = setting("", "Conversation component; empty: the one named like the model, else the only one.")
    seconds: float | None = setting(None, "Longest wait for one whole answer; empty: 300 seconds.", gt=0, le=86_400)
