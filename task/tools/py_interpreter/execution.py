"""What an interpreter server answers, read once."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from task.tools.mcp.results import MCPResult

DONE = "done"
PLOTLY = "application/vnd.plotly.v1+json"


class ProducedFile(BaseModel):
    """A file the code has made or shown; `path` is relative to the session's `files_path`."""

    model_config = ConfigDict(frozen=True)

    name: str
    mime_type: str
    size: int
    path: str

    def order(self) -> int:
        """Pictures first, then charts: DIAL Chat folds what comes later."""
        return 0 if self.mime_type.startswith("image/") else 1 if self.mime_type == PLOTLY else 2


class CodeError(BaseModel):
    model_config = ConfigDict(frozen=True)

    ename: str
    traceback: str


class Execution(BaseModel):
    """One call's outcome. `missing` names files that the server wants before it runs the code."""

    model_config = ConfigDict(frozen=True)

    files_path: str
    missing: tuple[str, ...] = ()
    stdout: str = ""
    stderr: str = ""
    result: str = ""
    displays: tuple[str, ...] = ()
    error: CodeError | None = None
    files: tuple[ProducedFile, ...] = ()
    notes: tuple[str, ...] = ()
    ending: str = DONE
    sandbox_tier: str = ""

    @property
    def failed(self) -> bool:
        return self.error is not None or self.ending != DONE


def execution_of(result: MCPResult) -> Execution | None:
    """The outcome as our server tells it; None: the answer of a server of another kind."""
    try:
        return Execution.model_validate(result.structured)
    except ValidationError:
        return None
