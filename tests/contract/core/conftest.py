"""The Core under test: local Core, or the one at `CORE_BASE_URL` (with `CORE_API_KEY`, `CORE_OTHER_API_KEY`)."""

import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from tests.support.core import RunningCore, local_core
from tests.support.core_files import CoreFiles, new_home
from tests.support.core_peers import config

BASE_URL = os.environ.get("CORE_BASE_URL", "").rstrip("/")
KEY = os.environ.get("CORE_API_KEY", "key-one") if BASE_URL else "key-one"
OTHER_KEY = os.environ.get("CORE_OTHER_API_KEY", "key-two") if BASE_URL else "key-two"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "local_core: needs local Core's hooks or applications of the test behind it")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not BASE_URL:
        return
    here = Path(__file__).parent
    local = [item for item in items if here in item.path.parents and item.get_closest_marker("local_core")]
    config.hook.pytest_deselected(items=local)
    items[:] = [item for item in items if item not in local]


@pytest.fixture
async def core(tmp_path: Path) -> AsyncGenerator[RunningCore]:
    """A Core with nothing but keys."""
    async with local_core(config(), tmp_path) as running:
        if BASE_URL:
            yield RunningCore(BASE_URL, KEY, (KEY, OTHER_KEY), running.settings)
        else:
            yield running


@pytest.fixture
async def files(core: RunningCore) -> AsyncGenerator[CoreFiles]:
    """The files of a project, in a folder of the test's own."""
    async with CoreFiles.of(core.url, KEY, new_home()) as mine:
        yield mine


@pytest.fixture
async def other(core: RunningCore) -> AsyncGenerator[CoreFiles]:
    """The files of another project, in a folder of the test's own."""
    async with CoreFiles.of(core.url, OTHER_KEY, new_home()) as theirs:
        yield theirs
