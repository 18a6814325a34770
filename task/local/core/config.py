"""DIAL Core's dynamic configuration: the parts of `config.json` that local Core uses."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import AliasGenerator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from task.errors import SettingsError
from task.settings.sources import merged

KEY_VARIABLE = "DIAL_API_KEY"
PUBLISHED_KEY = "dial_api_key"  # stands in DIAL's documentation and in shared configuration files: no secret
_VARIABLE = re.compile(r"\$\{(?:env[:.])?([A-Za-z_][A-Za-z0-9_]*)\}")


class _Part(BaseModel):
    """One object of the file; fields are read in camelCase and in snake_case, unknown ones are ignored."""

    model_config = ConfigDict(
        alias_generator=AliasGenerator(validation_alias=to_camel), populate_by_name=True, extra="ignore", frozen=True
    )


_Word = Annotated[str, StringConstraints(to_lower=True)]


class Upstream(_Part):
    """Where the adapter behind a model sends its requests. Local Core takes the first one: it balances no load."""

    endpoint: str
    key: str | None = None


class Features(_Part):
    """What a deployment can do and the endpoints behind it, as far as it is used or Core has a default for it."""

    model_config = ConfigDict(extra="allow")

    rate_endpoint: str | None = None
    configuration_endpoint: str | None = None
    tools_supported: bool = False
    parallel_tool_calls_supported: bool = False
    system_prompt_supported: bool = True
    temperature_supported: bool | None = None
    allow_resume: bool = True


class ListedEntry(_Part):
    """What deployments and toolsets share. `name` is the entry's key in the file."""

    kind: ClassVar[str]

    name: str = ""
    endpoint: str | None = None
    display_name: str | None = None
    display_version: str | None = None
    icon_url: str | None = None
    description: str | None = None
    reference: str | None = None
    user_roles: frozenset[str] | None = None
    forward_auth_token: bool = False


class Deployment(ListedEntry):
    """What applications and models share."""

    features: Features = Features()
    input_attachment_types: list[str] | None = None
    max_input_attachments: int | None = None
    defaults: dict[str, Any] = Field(default_factory=dict[str, Any])


class Toolset(ListedEntry):
    kind = "toolset"

    transport: _Word = "http"
    allowed_tools: list[str] = Field(default_factory=list[str])
    forward_per_request_key: bool = False


class CoreApplication(Deployment):
    kind = "application"

    application_type_schema_id: str | None = None
    application_properties: dict[str, Any] | None = None
    mcp: Toolset | None = None


class Model(Deployment):
    kind = "model"

    type: _Word = "chat"
    upstreams: list[Upstream] = Field(default_factory=list[Upstream])
    tokenizer_model: str | None = None
    limits: dict[str, Any] | None = None
    pricing: dict[str, Any] | None = None

    @property
    def is_chat(self) -> bool:
        return self.type == "chat"


class ProjectKey(_Part):
    """A caller's key: Core refuses entries without a project or without any role."""

    project: str = Field(min_length=1)
    role: str | None = None
    roles: list[str] = Field(default_factory=list[str])

    @model_validator(mode="after")
    def _has_a_role(self) -> Self:
        if not self.all_roles:
            raise ValueError("a key needs a role")
        return self

    @property
    def all_roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(([self.role] if self.role else []) + self.roles))


class CoreConfig(_Part):
    """The whole file."""

    applications: dict[str, CoreApplication] = Field(default_factory=dict[str, CoreApplication])
    models: dict[str, Model] = Field(default_factory=dict[str, Model])
    toolsets: dict[str, Toolset] = Field(default_factory=dict[str, Toolset])
    keys: dict[str, ProjectKey] = Field(default_factory=dict[str, ProjectKey])
    application_type_schemas: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])

    @model_validator(mode="before")
    @classmethod
    def _entries_know_their_names(cls, document: Any) -> Any:
        named: dict[str, Any] = {key: value for key, value in dict(document).items() if value is not None}
        for section in ("applications", "models", "toolsets"):
            if isinstance(entries := named.get(section), dict):
                named[section] = {
                    name: {**entry, "name": name} if isinstance(entry, dict) else entry
                    for name, entry in entries.items()
                }
        return named


def load_config(
    paths: Sequence[Path], document: Mapping[str, Any] | None, fill_in: Callable[[dict[str, Any]], dict[str, Any]]
) -> CoreConfig:
    """The configuration: `document`, then the files merged over it in order, with its variables filled in.

    Raises:
        SettingsError: a file cannot be read, or the whole is not a configuration.
    """
    for path in paths:
        try:
            document = merged(document or {}, {**json.loads(path.read_text("utf-8"))})
        except (OSError, ValueError, TypeError) as error:
            reason = f"cannot be read as a JSON object: {error}. Correct it."
            raise SettingsError(f"Core's configuration {path} {reason}") from None
    try:
        return CoreConfig.model_validate(fill_in(dict(document or {})))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        files = ", ".join(map(str, paths)) or "Core's configuration"
        raise SettingsError(f"{files}: {place or 'the document'}: {first['msg']}. Correct it.") from None


def expanded(value: Any, environment: Mapping[str, str], hosts: Mapping[str, str]) -> Any:
    """The document with `${env:NAME}` replaced and the host names of addresses replaced by `hosts`.

    Unknown variables become empty. An address keeps its port where `hosts` names none (`{"agent": "127.0.0.1"}`,
    `{"agent": "127.0.0.1:5031"}`).
    """
    if isinstance(value, list):
        return [expanded(item, environment, hosts) for item in value]
    if isinstance(value, dict):
        return {expanded(key, environment, hosts): expanded(item, environment, hosts) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    text = _VARIABLE.sub(lambda match: environment.get(match[1], ""), value)
    if not text.startswith(("http://", "https://")):
        return text
    parts = urlsplit(text)
    host = hosts.get(parts.hostname or "")
    if host is None:
        return text
    port = f":{parts.port}" if parts.port and urlsplit(f"//{host}").port is None else ""
    return urlunsplit(parts._replace(netloc=f"{host}{port}"))


def with_installation_key(document: dict[str, Any], key: str) -> dict[str, Any]:
    """The document with `key` in place of the published example key, or in a new entry."""
    entries = dict(document.get("keys") or {})
    published = entries.pop(PUBLISHED_KEY, None)
    entries.pop("", None)  # an unset variable must not become a key
    entries.setdefault(key, published or {"project": "local", "role": "default"})
    return {**document, "keys": entries}
