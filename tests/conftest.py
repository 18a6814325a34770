"""Fixtures that all tests share."""

import gc
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests.support.isolation import OUTSIDE, hide_environment, without_services

# Before the first import of the product, which sets a variable of its own.
HOME = tempfile.mkdtemp(prefix="dial-agent-home-")
hide_environment(HOME)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script; the product would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
# An example takes as long as the machine needs; tests that bound time measure CPU.
# The same examples each time, so that a result depends on the code alone; `--hypothesis-profile explore` has others.
hypothesis.settings.register_profile("default", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None)
hypothesis.settings.load_profile("default")


def pytest_unconfigure() -> None:
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def foreign_directory() -> Generator[None]:
    """Tests run in a folder without a `.env` or `dial-agent.yaml`."""
    before = Path.cwd()
    os.chdir(HOME)
    yield
    os.chdir(before)


@pytest.fixture(autouse=True)
def isolation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reaches the user's own services; those marked for it see the user's environment as it is."""
    if any(mark.name == "local_model" or mark.name.startswith("live_") for mark in request.node.iter_markers()):
        for name, value in OUTSIDE.items():
            monkeypatch.setenv(name, value)
    else:
        monkeypatch.setattr(socket.socket, "connect", without_services(socket.socket.connect))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if os.geteuid() == 0 or config.option.collectonly:  # the fault map counts what root runs
        return
    left_out = [item for item in items if item.get_closest_marker("root")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exempt collected tests from garbage collection: scanning them repeatedly took a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(params=["0.x", pytest.param("1.x", marks=pytest.mark.system)])
def chat(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The version of DIAL Chat by whose rules the test's readers read."""
    from tests.support.chat_reader import ChatReader

    monkeypatch.setattr(ChatReader, "version", request.param)
    return request.param


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose path leaves room for the name of a socket, however long that of `tmp_path` is."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def weights() -> None:
    """The packaged embedding model, which was downloaded before the tests."""
    from task.embedding.weights import PackagedModel

    if (state := PackagedModel().state()).kind != "ready":
        pytest.fail(f"search in documents is {state.text}", pytrace=False)
