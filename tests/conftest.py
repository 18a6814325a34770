"""What tests of every folder may share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from task.utils.embedder.client import Embedder


@pytest.fixture(scope="session")
def embedding_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an embedding process that is ready: loading the model takes seconds, so tests share one."""
    folder = tmp_path_factory.getbasetemp() / "embedder"
    embedder = Embedder(folder)
    asyncio.run(embedder.embed(["ready"]))
    yield folder
    asyncio.run(embedder.close())
