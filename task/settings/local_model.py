"""Settings of the model that local Core runs on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Folder = Annotated[Path, AfterValidator(Path.expanduser)]


class LocalModelSettings(BaseModel):
    """The model that local Core runs on this machine (`dial-agent model`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Folder | None = Field(
        default=None, description="GGUF file of a model of your own; empty: the one that `dial-agent model pull` gets."
    )
    folder: Folder | None = Field(
        default=None, description="Folder of downloaded models; empty: `models` in the user's cache folder."
    )
    context_tokens: int = Field(
        default=8192, ge=2048, le=2**20, description="Tokens the model reads at a time; more of them take more memory."
    )
    answer_tokens: int = Field(default=1024, ge=64, description="Longest answer, unless the request names a limit.")
    threads: int = Field(default=0, ge=0, le=1024, description="Threads of the model; 0: one for every core.")
    queue: int = Field(default=8, ge=0, le=1000, description="Requests that may wait while one is answered.")
