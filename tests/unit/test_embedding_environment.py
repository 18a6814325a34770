"""The embedding process's environment: installed by the real pip from an index on loopback, hurt, repaired, shared."""

import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from task.embedding.client import Embedder
from task.embedding.environment import EmbeddingEnvironment, InstallationFailed
from task.embedding.model import EmbeddingUnavailable
from tests.support.package_index import PackageIndexPeer, package_index, wheel
from tests.support.waiting import until

WHEELS = {"torch": wheel("torch", {"torch.py": b"SIZE = 'large'\n" + b"#" * 50_000}),
          "tokens": wheel("tokens", {"tokens.py": b""})}  # fmt: skip
PINNED = "# The list.\ntorch==1.0; python_version > '3'\ntokens==1.0\n"
_INSTALL = """
import os, sys
from pathlib import Path
from task.embedding.environment import EmbeddingEnvironment
environment = EmbeddingEnvironment(None, Path(sys.argv[1]), Path(sys.argv[2]))
environment.install(os.environ, lambda step: print(step, flush=True))
"""


@pytest.fixture
def tmp_path(short_path: Path) -> Path:
    return short_path  # the embedding process's socket lies there


@pytest.fixture
async def index() -> AsyncGenerator[PackageIndexPeer]:
    async with package_index(WHEELS) as index:
        yield index
        index.gate.set()


@pytest.fixture
def environment(tmp_path: Path) -> EmbeddingEnvironment:
    (tmp_path / "requirements.txt").write_text(PINNED)
    return EmbeddingEnvironment(None, tmp_path / "embedding", tmp_path / "requirements.txt")


async def install(environment: EmbeddingEnvironment, index: PackageIndexPeer, torch_index: str = "") -> list[str]:
    steps: list[str] = []
    async with asyncio.timeout(30):
        await asyncio.to_thread(environment.install, variables(index), steps.append, torch_index)
    return steps


def variables(index: PackageIndexPeer) -> dict[str, str]:
    return {**index.environment, "PIP_NO_CACHE_DIR": "1"}


async def output_of(environment: EmbeddingEnvironment, code: str) -> str:
    process = await asyncio.create_subprocess_exec(
        str(environment.python), "-I", "-c", code, stdout=asyncio.subprocess.PIPE
    )
    return (await process.communicate())[0].decode().strip()


@pytest.mark.system
async def test_it_is_installed_once_and_again_only_when_its_list_changes(
    environment: EmbeddingEnvironment, index: PackageIndexPeer, tmp_path: Path
) -> None:
    assert environment.state().text == "not installed: run `dial-agent embedding`"
    steps = await install(environment, index)
    assert any(step.startswith("downloading torch (50") for step in steps)
    assert steps[-1] == "unpacking 2 packages"
    assert environment.state().kind == "ready"
    assert await output_of(environment, "import torch; print(torch.SIZE)") == "large"

    assert await install(environment, index) == []
    assert sorted(index.downloads) == ["tokens", "torch"]
    (tmp_path / "requirements.txt").write_text("tokens==1.0\n")
    assert environment.state().kind == "missing"
    await install(environment, index)
    assert environment.state().kind == "ready"
    assert not list((tmp_path / "embedding").glob("lib/python3.*/site-packages/torch*"))


@pytest.mark.fault("search in documents: an installation that is interrupted, or whose packages are not there")
async def test_a_download_that_breaks_off_is_named_to_operators_only_and_repaired_by_the_next_start(
    environment: EmbeddingEnvironment, index: PackageIndexPeer
) -> None:
    del index.wheels["torch"]
    with pytest.raises(InstallationFailed, match=r"torch==1\.0"):
        await install(environment, index)
    state = environment.state()
    assert (state.kind, state.text) == ("missing", "not installed: run `dial-agent embedding`")
    assert "torch==1.0" in state.reason
    folder = os.open(environment.python.parents[1], os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)  # as the next start does, before it has made anything
    assert environment.state().text == "being installed: starting"
    os.close(folder)
    index.wheels.update(WHEELS)
    await install(environment, index)
    assert environment.state().kind == "ready"


@pytest.mark.fault("search in documents: search in documents before it is installed")
@pytest.mark.fault("search in documents: two installations at once")
async def test_two_at_once_install_it_once_and_a_search_meanwhile_reports_how_far_it_is(
    environment: EmbeddingEnvironment, index: PackageIndexPeer, tmp_path: Path
) -> None:
    index.gate.clear()
    first = asyncio.create_task(install(environment, index))
    await until(lambda: "downloading torch" in environment.state().text)
    state = environment.state()
    assert state.kind == "installing"
    assert state.text.startswith("being installed: ")
    assert " s so far, downloading torch (" in state.text

    embedder = Embedder(tmp_path / "run", installed=environment)
    with pytest.raises(
        EmbeddingUnavailable, match=r"Search in documents is being installed: \d+ s so far, downloading"
    ):
        await embedder.embed(["How should I clean the plate?"])

    second = asyncio.create_task(install(environment, index))
    await asyncio.sleep(0)
    index.gate.set()
    await first
    assert await second in (["waiting for another process that installs it"], [])
    assert sorted(index.downloads) == ["tokens", "torch"]
    assert environment.state().kind == "ready"


@pytest.mark.fault("search in documents: an installation that is interrupted, or whose packages are not there")
async def test_one_that_is_killed_leaves_nothing_that_the_next_start_does_not_repair(
    environment: EmbeddingEnvironment, index: PackageIndexPeer, tmp_path: Path
) -> None:
    index.gate.clear()
    arguments = (str(tmp_path / "embedding"), str(tmp_path / "requirements.txt"))
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _INSTALL, *arguments, cwd=Path(__file__).parents[2], env=variables(index),
        start_new_session=True,
    )  # fmt: skip
    await until(lambda: "downloading torch" in environment.state().text)
    os.killpg(killed.pid, signal.SIGKILL)
    await killed.wait()
    await until(lambda: environment.state().kind == "missing")
    index.gate.set()
    await install(environment, index)
    assert await output_of(environment, "import tokens, torch; print(torch.SIZE)") == "large"
