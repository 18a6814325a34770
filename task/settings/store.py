"""Settings of the store of sessions and traces, and of what tokens cost."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, field_validator


def _mapping(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


class PriceSettings(BaseModel):
    """What a million tokens of one model cost."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompt: float = Field(ge=0)
    completion: float = Field(ge=0)


Prices = Annotated[dict[str, PriceSettings], BeforeValidator(_mapping)]


class StoreSettings(BaseModel):
    """The database of sessions, runs, traces, approvals and keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: SecretStr | None = Field(
        default=None,
        description="`sqlite:///folder/file.db` or `postgresql://user:password@host/name`; empty: `store.db` in "
        "`AGENT_DATA_DIR`.",
    )
    days: float = Field(default=30, gt=0, description="Days that sessions and traces are kept after their last use.")
    sessions: int = Field(default=10_000, ge=1, description="Most sessions kept; the last used stay.")
    traces: int = Field(default=100_000, ge=1, description="Most traces kept, and most runs; the newest stay.")
    spans_url: str | None = Field(
        default=None,
        pattern=r"^https?://",
        description="OpenTelemetry collector that gets finished traces as spans, without texts: "
        "http://host:4318/v1/traces. Needs the extra `otel`.",
    )

    @field_validator("url")
    @classmethod
    def _names_a_database(cls, url: SecretStr | None) -> SecretStr | None:
        known = ("sqlite:///", "postgresql://", "postgres://")
        if url is not None and not url.get_secret_value().startswith(known):
            raise ValueError("it must be sqlite:///folder/file.db or postgresql://user:password@host/name")
        return url
