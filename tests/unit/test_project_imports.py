"""The serving path starts light: heavy libraries are imported where they are first used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
HEAVY = frozenset({
    "IPython", "PIL", "faiss", "jupyter_client", "langchain_text_splitters", "matplotlib", "mcp", "numpy",
    "pandas", "pdfplumber", "plotly", "pypdfium2", "sentence_transformers", "sklearn", "torch", "transformers",
})  # fmt: skip
# What the command line needs before it knows which command was meant.
SERVERS = frozenset({"aiohttp", "aidial_client", "aidial_sdk", "fastapi", "httpx", "starlette", "uvicorn"})


def imported_by(module: str) -> set[str]:
    """The top-level packages that a fresh interpreter holds after importing `module`."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize("module", ["task.server", "task.local_core.app"])
def test_a_server_starts_without_heavy_libraries(module: str) -> None:
    assert imported_by(module) & HEAVY == set()


def test_the_command_line_starts_without_any_server() -> None:
    assert imported_by("task.cli") & (HEAVY | SERVERS) == set()
