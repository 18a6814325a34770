"""DIAL Core's dynamic configuration: the parts of `config.json` that local Core uses, as frozen models."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AliasGenerator, BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel


class _Part(BaseModel):
    """One object of the file; fields are read in camelCase and in snake_case, unknown ones are ignored."""

    model_config = ConfigDict(
        alias_generator=AliasGenerator(validation_alias=to_camel), populate_by_name=True, extra="ignore", frozen=True
    )


class Upstream(_Part):
    """Where the adapter behind a model sends its requests. Local Core takes the first one: it balances no load."""

    endpoint: str
    key: str | None = None
    extra_data: Any = None


class Features(_Part):
    """What a deployment can do and the endpoints behind it; the defaults are Core's."""

    rate_endpoint: str | None = None
    tokenize_endpoint: str | None = None
    truncate_prompt_endpoint: str | None = None
    configuration_endpoint: str | None = None
    system_prompt_supported: bool = True
    tools_supported: bool = False
    seed_supported: bool = False
    url_attachments_supported: bool = False
    folder_attachments_supported: bool = False
    allow_resume: bool = True
    accessible_by_per_request_key: bool = True
    content_parts_supported: bool = False
    temperature_supported: bool = True
    addons_supported: bool = True
    cache_supported: bool = False
    auto_caching_supported: bool = False
    parallel_tool_calls_supported: bool = False
    assistant_attachments_in_request_supported: bool = False
    consent_required: bool = False
    reasoning_efforts: list[str] = Field(default_factory=list[str])


class ListedEntry(_Part):
    """What deployments and toolsets share. `name` is the entry's key in the file."""

    name: str = ""
    endpoint: str | None = None
    display_name: str | None = None
    display_version: str | None = None
    icon_url: str | None = None
    description: str | None = None
    reference: str | None = None
    user_roles: frozenset[str] | None = None
    forward_auth_token: bool = False

    @property
    def unique_reference(self) -> str:
        return self.reference or self.name


class Deployment(ListedEntry):
    """What applications and models share."""

    features: Features = Features()
    input_attachment_types: list[str] | None = None
    max_input_attachments: int | None = None
    defaults: dict[str, Any] = Field(default_factory=dict[str, Any])
    description_keywords: list[str] = Field(default_factory=list[str])
    max_retry_attempts: int = 5


class Application(Deployment):
    application_properties: dict[str, Any] | None = None
    application_type_schema_id: str | None = None


class Model(Deployment):
    type: Annotated[str, StringConstraints(to_lower=True)] = "chat"
    upstreams: list[Upstream] = Field(default_factory=list[Upstream])
    override_name: str | None = None
    tokenizer_model: str | None = None
    limits: dict[str, Any] | None = None
    pricing: dict[str, Any] | None = None

    @property
    def is_chat(self) -> bool:
        return self.type == "chat"


class Toolset(ListedEntry):
    transport: str = "http"
    allowed_tools: list[str] = Field(default_factory=list[str])
    forward_per_request_key: bool = False


class ProjectKey(_Part):
    """A caller's key: Core refuses entries without a project or without any role."""

    project: str = Field(min_length=1)
    role: str | None = None
    roles: list[str] = Field(default_factory=list[str])

    @model_validator(mode="after")
    def _has_a_role(self) -> ProjectKey:
        if not self.all_roles:
            raise ValueError("a key needs a role")
        return self

    @property
    def all_roles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(([self.role] if self.role else []) + self.roles))


class CoreConfig(_Part):
    """The whole file. References of applications and models are unique."""

    applications: dict[str, Application] = Field(default_factory=dict[str, Application])
    models: dict[str, Model] = Field(default_factory=dict[str, Model])
    toolsets: dict[str, Toolset] = Field(default_factory=dict[str, Toolset])
    keys: dict[str, ProjectKey] = Field(default_factory=dict[str, ProjectKey])

    @model_validator(mode="before")
    @classmethod
    def _entries_know_their_names(cls, document: Any) -> Any:
        named = dict(document)
        for section in ("applications", "models", "toolsets"):
            entries: Any = named.get(section)
            if isinstance(entries, dict):
                named[section] = {
                    name: {**entry, "name": name} if isinstance(entry, dict) else entry
                    for name, entry in entries.items()
                }
        return {key: value for key, value in named.items() if value is not None}

    @model_validator(mode="after")
    def _references_are_unique(self) -> CoreConfig:
        owners: dict[str, str] = {}
        for deployment in (*self.applications.values(), *self.models.values()):
            other = owners.setdefault(deployment.unique_reference, deployment.name)
            if other != deployment.name:
                raise ValueError(f"{other!r} and {deployment.name!r} have one reference")
        return self

    def deployment(self, name: str) -> Deployment | None:
        return self.applications.get(name) or self.models.get(name)
