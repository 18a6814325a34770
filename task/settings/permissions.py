"""Settings of the gate: which calls run, which never do, and which a person is asked about."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator


def _rules(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


def _names(value: Any) -> Any:
    if not isinstance(value, str) or value.lstrip().startswith("["):
        return _rules(value)
    return [item.strip() for item in value.split(",") if item.strip()]


def _commands(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Command = Annotated[str, Field(pattern=r"\S")]
Commands = Annotated[tuple[Command, ...], BeforeValidator(_commands)]


class RuleSettings(BaseModel):
    """One rule; what it leaves out fits every call."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    action: Literal["allow", "deny", "ask"]
    tool: str = Field(default="*", min_length=1)
    effects: frozenset[Literal["read", "write", "execute", "network"]] | None = None
    path: str | None = Field(default=None, min_length=1)
    command: Commands = ()
    host: str | None = Field(default=None, min_length=1)
    known_url: bool | None = None
    trusted: bool = False

    @model_validator(mode="after")
    def _trust_allows(self) -> RuleSettings:
        if self.trusted and self.action != "allow":
            raise ValueError("only a rule that allows can be trusted")
        return self


Rules = Annotated[list[RuleSettings], BeforeValidator(_rules)]
Names = Annotated[list[str], BeforeValidator(_names)]


class PermissionSettings(BaseModel):
    """What the agent may do without asking; see [Permissions](permissions.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: Rules = Field(
        default_factory=list[RuleSettings],
        description="Rules before the product's own, as a list of mappings; see [Permissions](permissions.md#rules).",
    )
    default_rules: bool = Field(
        default=True, description="Add the product's own rules after these; off: what no rule fits is asked."
    )
    tools: Names | None = Field(default=None, description="Names of the tools that may be called at all; empty: all.")
    link_hosts: Names = Field(
        default_factory=list[str],
        description="Hosts (globs) to which links and pictures in answers may lead in any case.",
    )
    open_minutes: float = Field(default=60, gt=0, le=1440, description="Minutes for which an approval can be given.")
    grant_hours: float = Field(default=24, gt=0, description='Hours for which "always" holds in a conversation.')
