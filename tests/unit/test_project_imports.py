"""The serving path starts light: heavy libraries are imported where they are first used."""

import ast
import asyncio
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from task.cli.model_choice import choose_model
from task.settings import load_settings
from tests.support.isolation import SERVICES

ROOT = Path(__file__).parent.parent.parent
HEAVY = frozenset({
    "IPython", "PIL", "alembic", "faiss", "jupyter_client", "langchain_text_splitters", "matplotlib", "mcp", "numpy",
    "onnxruntime", "openvino", "pandas", "pdfplumber", "plotly", "pypdfium2", "sentence_transformers", "sklearn",
    "sqlalchemy", "tokenizers", "torch", "transformers",
})  # fmt: skip
LATER = frozenset({"aidial_client", "httpx", "jsonschema", "openai", "prometheus_client"})  # of the agent's requests
# Half a second each; a test run waits for its collection, and every worker makes its own.
SLOW_TO_COLLECT = frozenset({
    "aidial_client", "docx", "faiss", "langchain_text_splitters", "mcp", "onnx", "openai", "openpyxl", "openvino",
    "pandas", "pptx", "sentence_transformers", "torch",
})  # fmt: skip
# What the command line needs before it knows which command was meant.
SERVERS = frozenset({"aiohttp", "aidial_client", "aidial_sdk", "fastapi", "httpx", "pydantic", "starlette", "uvicorn"})


def imported_by(module: str) -> set[str]:
    """The top-level packages that a fresh interpreter holds after importing `module`."""
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, encoding="utf-8", timeout=30, check=False
    )
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


@pytest.mark.parametrize(("module", "unneeded"), [("task.server", HEAVY | LATER), ("task.local.core.app", HEAVY)])
def test_a_server_starts_without_heavy_libraries(module: str, unneeded: frozenset[str]) -> None:
    assert imported_by(module) & unneeded == set()


def test_the_command_line_starts_without_any_server() -> None:
    assert imported_by("task.cli.app") & (HEAVY | SERVERS) == set()


def test_the_tests_are_collected_without_slow_libraries() -> None:
    slow = SLOW_TO_COLLECT | {dotted(file) for file in modules(programs=True) if at_the_top(file) & SLOW_TO_COLLECT}
    found = {dotted(file): taken for file in modules(programs=False) if (taken := at_the_top(file) & slow)}
    assert found == {}, "import these where they are used"


def modules(*, programs: bool) -> list[Path]:
    """The files that collecting imports; or those that are programs of their own, such as servers of tests."""
    files = (ROOT / "tests").rglob("*.py")
    return [file for file in files if ("\nif __name__ ==" in file.read_text(encoding="utf-8")) is programs]


def dotted(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts)


def at_the_top(file: Path) -> set[str]:
    """The modules that the module's own statements import, and their packages."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    plain = {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module for node in body if isinstance(node, ast.ImportFrom) and node.module}
    return plain | parts | {name.partition(".")[0] for name in plain | parts}


async def test_the_settings_of_the_tests_are_the_defaults() -> None:
    settings = load_settings()
    assert settings.model_fields_set == {"ollama_local", "data_dir", "cache_dir"}
    assert settings.cache_dir.is_relative_to(Path.home())
    assert (await choose_model(settings)).rule == "demo"


@pytest.mark.parametrize("port", sorted(SERVICES))
async def test_a_service_at_a_default_port_is_not_reached(port: int) -> None:
    with socket.socket() as service, suppress(OSError):  # the user's own may hold the port
        service.bind(("127.0.0.1", port))
        service.listen()
        with pytest.raises(ConnectionRefusedError, match="not started"):
            await asyncio.open_connection("127.0.0.1", port)
