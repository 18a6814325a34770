"""The documented Markdown of an execution."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from task.tools.py_interpreter.execution import Execution
from task.tools.stage_text import ARGUMENT_CHARS, clipped

UNSAFE = "none"


def heading(code: str) -> str:
    """The part that can be shown before the code has run."""
    return f"## Execution Result\n\n{_fenced(clipped(code, ARGUMENT_CHARS), 'python')}\n\n"


def outcome(execution: Execution, links: Sequence[tuple[str, str]], notes: Iterable[str]) -> str:
    """The part that tells what came out; `links` are names and URLs of the files that were handed over."""
    told = [*execution.notes, *notes]
    if execution.sandbox_tier == UNSAFE:
        told.append("This server runs code without a sandbox.")
    parts = [f"**Note:** {note}" for note in told]
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
    longest = max(map(len, re.findall(r"^\s*(`{3,})", text, re.MULTILINE)), default=2)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
