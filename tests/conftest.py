"""What tests of every folder may share."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from task.embedding.client import Embedder


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: looking through it for garbage, again and again, took a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def embedding_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of an embedding process that is ready: loading the model takes seconds, so tests share one."""
    folder = tmp_path_factory.getbasetemp() / "embedder"
    embedder = Embedder(folder)
    asyncio.run(embedder.embed(["ready"]))
    yield folder
    asyncio.run(embedder.close())
