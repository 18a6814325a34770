"""An interpreter server's answer: parsed, and rendered in the documented Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from task.tools.charts import CHART
from task.tools.mcp.results import MCPResult
from task.tools.toolbox import ARGUMENT_CHARS, clipped

DONE = "done"
UNSAFE = "none"


class ProducedFile(BaseModel):
    """A file the code has written or displayed; `path` is relative to the session's `files_path`."""

    model_config = ConfigDict(frozen=True)

    name: str
    mime_type: str
    size: int
    path: str

    def order(self) -> int:
        """Pictures first, then charts: DIAL Chat folds later ones."""
        return 0 if self.mime_type.startswith("image/") else 1 if self.mime_type == CHART else 2


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
    """The outcome from our own server, or None if the server is of another kind."""
    try:
        return Execution.model_validate(result.structured)
    except ValidationError:
        return None


def heading(code: str) -> str:
    """The part that is shown before the code has run."""
    return f"## Execution Result\n\n{_fenced(clipped(code, ARGUMENT_CHARS), 'python')}\n\n"


def outcome(execution: Execution, links: Sequence[tuple[str, str]], notes: Iterable[str]) -> str:
    """The part with the results; `links` are names and URLs of the produced files."""
    all_notes = [*execution.notes, *notes]
    if execution.sandbox_tier == UNSAFE:
        all_notes.append("This server runs code without a sandbox.")
    parts = [f"**Note:** {note}" for note in all_notes]
    parts.append(f"**Output:**\n{_fenced(_output(execution))}")
    parts += [text for text in (*execution.displays, execution.result) if _is_table(text)]
    if links:
        parts.append("**Generated Files:**\n" + "\n".join(f"- [{name}]({url})" for name, url in links))
    return "\n\n".join(parts) + "\n"


def _output(execution: Execution) -> str:
    texts = [execution.stdout, *(text for text in execution.displays if not _is_table(text))]
    if execution.stderr:
        texts.append(f"[stderr]\n{execution.stderr}")
    if execution.result and not _is_table(execution.result):
        texts.append(execution.result)
    if execution.error:
        texts.append(execution.error.traceback)
    return "\n".join(text.rstrip("\n") for text in texts if text.strip()) or "(nothing was printed)"


def _is_table(text: str) -> bool:
    return text.startswith("| ") and "\n| ---" in text


def _fenced(text: str, language: str = "") -> str:
    longest = max(map(len, re.findall(r"^[^\S\n]*+(`{3,}+)", text, re.MULTILINE)), default=2)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
