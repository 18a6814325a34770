"""No test sees what belongs to the person who runs it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from task.cli.model_choice import choose_model, weight_store
from task.local.model.weights import CODER
from task.settings import load_settings
from tests.support.isolation import SERVICES

ROOT = Path(__file__).parents[2]


def plant_weights(environ: Mapping[str, str], folder: Path) -> None:
    store = weight_store(load_settings(environ=environ, directory=folder))
    store.runtime.mkdir(parents=True)
    file = store.path(CODER)
    file.write_bytes(b"GGUF")
    stamp = {"size": 4, "changed": file.stat().st_mtime_ns, "sha256": CODER.sha256}
    file.with_name(f"{file.name}.checked").write_text(json.dumps(stamp))


async def test_neither_the_weights_nor_the_settings_of_a_home_are_taken_by_a_test(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "caches")}
    plant_weights(home, tmp_path)
    assert (await choose_model(load_settings(environ=home, directory=tmp_path))).rule == "local"
    settings = {"OPENAI_API_KEY": "key", "DIAL_ENDPOINT": "http://core:8080", "AGENT_PORT": "1", "COLUMNS": "20"}
    (tmp_path / ".env").write_text("AGENT_NO_SETTING=1\n")
    tests = [f"{ROOT}/tests/unit/test_model_choice.py", f"{__file__}::test_the_settings_of_the_tests_are_the_defaults"]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    inner = subprocess.run(
        [*command, "-c", f"{ROOT}/pyproject.toml", *tests],
        cwd=tmp_path, env={**os.environ, **home, **settings}, capture_output=True, encoding="utf-8", timeout=50,
    )  # fmt: skip
    assert inner.returncode == 0, inner.stdout


async def test_the_settings_of_the_tests_are_the_defaults() -> None:
    settings = load_settings()
    assert settings.model_fields_set == {"ollama_local", "data_dir", "cache_dir"}
    assert settings.cache_dir.is_relative_to(Path.home())
    assert (await choose_model(settings)).rule == "demo"


@pytest.mark.parametrize("port", sorted(SERVICES))
async def test_a_service_at_a_default_port_is_not_reached(port: int) -> None:
    with socket.socket() as service, suppress(OSError):  # the person's own may hold the port
        service.bind(("127.0.0.1", port))
        service.listen()
        with pytest.raises(ConnectionRefusedError, match="not started"):
            await asyncio.open_connection("127.0.0.1", port)
