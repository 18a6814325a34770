"""The kernels' environment, made by the real pip from an index on loopback: shared, hurt, repaired."""

import asyncio
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncGenerator
from importlib.metadata import version
from pathlib import Path

import pytest
import typing_extensions

from task.cli import companions
from task.cli.environments import kernels_name
from task.settings import load_settings
from tests.support.package_index import PackageIndexPeer, package_index, wheel
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
WHEELS = {"large": wheel("large", {"large.py": b"SIZE = 'large'\n" + b"#" * 500_000})}
PINNED = f"# The list.\nlarge==1.0\ntyping_extensions=={version('typing_extensions')}\n"
MAKE = """
import os, resource, sys
from pathlib import Path
from task.cli.environments import InstallationFailed, make_kernels
if bound := int(sys.argv[3]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (bound, bound))
try:
    make_kernels(Path(sys.argv[1]), os.environ, lambda step: print(step, flush=True), Path(sys.argv[2]))
except InstallationFailed as error:
    sys.exit(str(error))
"""


@pytest.fixture
async def index() -> AsyncGenerator[PackageIndexPeer]:
    async with package_index(WHEELS) as index:
        yield index
        index.gate.set()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A path with blanks and letters beyond ASCII; the list of packages lies beside it."""
    data = tmp_path / "my dätä"
    data.mkdir()
    (data / "list.txt").write_text(PINNED)
    return data / "kernels"


async def making(folder: Path, index: PackageIndexPeer, bound: int = 0, **variables: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", MAKE, str(folder), str(folder.with_name("list.txt")), str(bound),
        cwd=ROOT, env={**index.environment, "PIP_NO_CACHE_DIR": "1", **variables}, stdout=PIPE, stderr=STDOUT,
        start_new_session=True,
    )  # fmt: skip


async def output(process: Process) -> list[str]:
    text, _ = await asyncio.wait_for(process.communicate(), 60)
    return text.decode().splitlines()


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([folder / "bin/python", "-I", "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.fault("installation: a data folder whose path has blanks and non-ASCII letters")
async def test_kernels_get_what_their_list_has_and_share_what_the_product_has(
    folder: Path, index: PackageIndexPeer
) -> None:
    for number in range(3):  # of versions before this one
        (folder.parent / f"kernels-{number:012}" / "bin").mkdir(parents=True)
        os.utime(folder.parent / f"kernels-{number:012}", (number, number))
    assert await output(await making(folder, index)) == ["downloading large", "unpacking 1 packages"]
    assert sorted(path.name for path in folder.parent.glob("kernels*")) == ["kernels", "kernels-000000000002"]
    found = run(folder, "import large, typing_extensions; print(large.SIZE, typing_extensions.__file__)").stdout
    assert found.startswith(f"large {folder}")
    assert Path(found.split(" ", 1)[1].strip()).stat().st_size == Path(typing_extensions.__file__).stat().st_size
    assert index.downloads == ["large"]
    assert "No module named 'task'" in run(folder, "import task").stderr
    await until(lambda: list(folder.glob("lib/*/site-packages/__pycache__/large.*.pyc")))  # in the background
    assert await output(await making(folder, index)) == []


@pytest.mark.system
@pytest.mark.fault("installation: two at once")
async def test_two_at_once_make_it_once(folder: Path, index: PackageIndexPeer) -> None:
    index.gate.clear()
    first = await making(folder, index)
    assert first.stdout
    assert await asyncio.wait_for(first.stdout.readline(), 60) == b"downloading large\n"
    second = await making(folder, index)
    assert second.stdout
    assert b"waiting for another process" in await asyncio.wait_for(second.stdout.readline(), 60)
    index.gate.set()
    assert await output(first) == ["unpacking 1 packages"]
    assert await output(second) == []
    assert index.downloads == ["large"]


@pytest.mark.system
@pytest.mark.fault("installation: Ctrl-C, a kill or a broken connection in the middle of a download")
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL, None])
async def test_one_that_ends_in_the_middle_leaves_nothing_that_the_next_does_not_repair(
    folder: Path, index: PackageIndexPeer, end: signal.Signals | None
) -> None:
    index.gate.clear()
    index.cut = end is None
    process = await making(folder, index)
    assert process.stdout
    assert await asyncio.wait_for(process.stdout.readline(), 60) == b"downloading large\n"
    if end is not None:
        os.killpg(process.pid, end)
    await output(process)
    assert process.returncode
    assert not folder.exists()
    index.gate.set()
    await output(await making(folder, index))
    assert run(folder, "import large").returncode == 0
    assert sorted(path.name for path in folder.parent.iterdir()) == ["kernels", "list.txt"]


@pytest.mark.system
@pytest.mark.fault("installation: a full disk")
async def test_a_full_disk_is_a_sentence_and_leaves_the_disk_as_it_was(folder: Path, index: PackageIndexPeer) -> None:
    process = await making(folder, index, bound=100_000)
    assert "File too large" in (await output(process))[-1]
    assert (process.returncode, folder.exists(), folder.with_name("kernels.part").exists()) == (1, False, False)


@pytest.mark.system
@pytest.mark.fault("installation: no network")
async def test_no_network_is_a_sentence(folder: Path, index: PackageIndexPeer) -> None:
    process = await making(folder, index, PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="1")
    assert (await output(process))[-1] == "the package index cannot be reached. What was downloaded is kept: try again"


@pytest.mark.fault("installation: a pip that is configured with another folder")
async def test_a_pip_that_installs_elsewhere_makes_no_environment_that_lacks_packages(
    folder: Path, index: PackageIndexPeer, tmp_path: Path
) -> None:
    elsewhere, config = str(tmp_path / "elsewhere"), tmp_path / "pip.conf"
    config.write_text(f"[install]\ntarget = {elsewhere}\n")
    folder.with_name("list.txt").write_text("large==1.0\n")
    refused = await output(await making(folder, index, PIP_CONFIG_FILE=str(config)))
    assert refused[-1] == "large is not there. Is pip configured with a target or a prefix?"
    assert not folder.exists()
    await output(await making(folder, index, PIP_TARGET=elsewhere, PIP_USER="1", PIP_DRY_RUN="1"))
    assert run(folder, "import large").returncode == 0


@pytest.mark.system
@pytest.mark.fault("installation: a proxy")
async def test_a_proxy_is_used(folder: Path, index: PackageIndexPeer) -> None:
    addresses = {"PIP_INDEX_URL": "http://packages.example/simple", "PIP_TRUSTED_HOST": "packages.example"}
    await output(await making(folder, index, 0, http_proxy=index.url, **addresses))
    assert run(folder, "import large").returncode == 0


@pytest.mark.system
@pytest.mark.fault("installation: a Python without venv, ensurepip or pip, or with an old pip")
@pytest.mark.parametrize(
    ("lacking", "sentence"),
    [
        (("venv",), "This Python has no module `venv`. Install it, or uv."),
        (("pip", "ensurepip"), "This Python has neither pip nor `ensurepip`. Install one of them, or uv."),
    ],
)
async def test_what_python_lacks_is_named(
    folder: Path, index: PackageIndexPeer, tmp_path: Path, lacking: tuple[str, ...], sentence: str
) -> None:
    for name in lacking:
        (tmp_path / "stubs" / name).mkdir(parents=True)
        (tmp_path / "stubs" / name / "__init__.py").write_text("__version__ = '20.0'\nif __name__ == 'venv': import no")
        (tmp_path / "stubs" / name / "__main__.py").write_text("import no_such_module")
    process = await making(folder, index, PYTHONPATH=str(tmp_path / "stubs"), PATH="/nowhere")
    assert (await output(process))[-1] == sentence
    assert not folder.exists()


UV = """#!/bin/sh
echo "$@" >> "$HOME/asked"
echo "error: Failed to fetch: large" && echo "  Caused by: dns error" && exit 2
"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({}, True),
        ({"PIP_INDEX_URL": "INDEX"}, False),
        ({"PIP_INDEX_URL": "INDEX", "UV_INDEX": "https://x.example"}, True),
    ],
)
async def test_uv_installs_where_it_is_there_unless_only_pip_is_configured(
    folder: Path, index: PackageIndexPeer, tmp_path: Path, variables: dict[str, str], asked: bool
) -> None:
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    index_url = {name: value.replace("INDEX", f"{index.url}/simple") for name, value in variables.items()}
    given = {"PIP_INDEX_URL": "", "HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin", **index_url}
    printed = await output(await making(folder, index, 0, **given))
    assert (tmp_path / "asked").exists() == asked
    assert ("dns error. What was downloaded is kept: try again" in printed) == asked
    assert folder.exists() != asked


@pytest.mark.fault("installation: two versions beside each other, and a downgrade")
def test_versions_with_other_lists_do_not_share_an_environment(folder: Path) -> None:
    before, listed = kernels_name(folder.with_name("list.txt")), folder.with_name("list.txt")
    listed.write_text("large==2.0\n")
    assert kernels_name(listed) != before
    listed.write_text(PINNED)
    assert kernels_name(listed) == before


@pytest.mark.fault("installation: a HOME that is read-only or missing")
def test_a_data_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companions, "CLONE", tmp_path)
    reason = companions.prepare_interpreter(load_settings(environ={"HOME": "/proc/nowhere"}), print)
    assert reason
    assert reason.startswith("/proc/nowhere/.local/share/dial-agent/kernels-")
    assert "cannot be made: No such file or directory" in reason


@pytest.mark.root
@pytest.mark.fault("installation: another user's data folder")
def test_another_users_environment_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(companions, "CLONE", tmp_path)
    python = tmp_path / kernels_name() / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    settings = load_settings(environ={"AGENT_DATA_DIR": str(tmp_path)})
    assert companions.prepare_interpreter(settings, print) is None
    os.lchown(python, 12345, 12345)
    assert "belongs to another user" in (companions.prepare_interpreter(settings, print) or "")
