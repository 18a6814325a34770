"""Applications that users made of the agent: their properties narrow its profile for a request."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from task.permissions.decisions import PermissionMode
from task.product.profile import Profile, Services
from task.tools.models import Caller

Name = Annotated[str, StringConstraints(min_length=1, max_length=300)]


class Part(BaseModel):
    """A part of an application's properties: unknown names are refused, and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Starter(Part):
    """A conversation starter: what its button shows, and the text that it sends."""

    title: str = Field(min_length=1, max_length=80)
    text: str = Field(min_length=1, max_length=2000)


class ApplicationLimits(Part):
    """How far one run of the application may go; never further than the operator's own limits."""

    steps: int | None = Field(default=None, ge=1, le=1000)
    run_seconds: float | None = Field(default=None, gt=0)
    run_tokens: int | None = Field(default=None, ge=1)


class ApplicationProperties(Part):
    """What makes an application; all of it is optional, and text from outside.

    `tools` are names of deployments, applications and toolsets, `builtin` the agent's own tools that stay, None for
    all of the operator's. `context` are addresses `files/{bucket}/{path}` of files, or of folders with a `/` at the
    end.
    """

    instructions: str = Field(default="", max_length=20_000)
    model: str = Field(default="", max_length=300)
    tools: tuple[Name, ...] = Field(default=(), max_length=50)
    builtin: tuple[Name, ...] | None = Field(default=None, max_length=100)
    context: tuple[Annotated[Name, Field(pattern=r"^files/[^/]+/.")], ...] = Field(default=(), max_length=100)
    starters: tuple[Starter, ...] = Field(default=(), max_length=10)
    permission_mode: PermissionMode | None = None
    limits: ApplicationLimits = ApplicationLimits()


async def applied(services: Services, profile: Profile, caller: Caller, headers: Mapping[str, str]) -> Profile:
    """The profile of a request with these headers: that of the application which they name, else as it is.

    Raises:
        InvalidRequest: the application's properties do not fit, or leave the operator's bounds.
    """
    return replace(profile)
