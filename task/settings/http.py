"""Settings of the HTTP front door: who may come in, from where, and how much they may send."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _names(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        return json.loads(value)
    return [item.strip() for item in value.split(",") if item.strip()]


Names = Annotated[list[str], BeforeValidator(_names)]


class HttpSettings(BaseModel):
    """The HTTP API and the web page; see [HTTP API](http-api.md)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["open", "keys", "dial"] = Field(
        default="open",
        description="Who may use the HTTP API: `open` everybody on this machine, `keys` owners of keys made with "
        "`dial-agent keys`, `dial` whoever has a key of DIAL Core, or a user's token.",
    )
    ui: bool = Field(default=True, description="Serve the web page at `/`.")
    origins: Names = Field(
        default_factory=list[str], description="Web origins of others that may call the HTTP API from a browser."
    )
    hosts: Names = Field(
        default_factory=list[str], description="Further names by which the HTTP API may be called in the mode `open`."
    )
    requests_per_minute: int = Field(default=600, ge=1, description="Requests of one key in a minute.")
    body_bytes: int = Field(default=8 * 2**20, ge=1024, description="Largest request body, files aside.")
    steps: int = Field(default=10, ge=1, le=1000, description="Model requests with tools in one run of the HTTP API.")
    detach_seconds: float = Field(
        default=120, ge=0, description="Seconds a run in a session goes on while nobody listens to it."
    )
