"""Files of a working directory: what is seen, what may be opened, how one gets in."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from mcp_servers.python_interpreter.files import NewFile, NoSuchFile, open_file, read_file, snapshot
from mcp_servers.python_interpreter.places import KernelFolders
from mcp_servers.python_interpreter.runtime import runtime_folder


@pytest.fixture
def place(tmp_path: Path) -> KernelFolders:
    place = KernelFolders(tmp_path / "kernel", None)
    place.make()
    return place


def test_new_and_changed_files_are_listed_oldest_change_first(place: KernelFolders) -> None:
    (place.work / "same").write_text("same")
    (place.work / "old").write_text("old")
    before = snapshot(place.work, 100)
    (place.work / "old").write_text("changed")
    (place.work / "sub").mkdir()
    (place.work / "sub" / "new").write_text("new")
    os.utime(place.work / "old", ns=(1, 1))
    assert snapshot(place.work, 100).since(before) == ["old", "sub/new"]


@pytest.mark.fault("interpreter: hard links in the outputs")
def test_links_hidden_names_pipes_and_hard_links_are_not_seen_but_their_room_counts(place: KernelFolders) -> None:
    (place.work / ".hidden").mkdir()
    (place.work / ".hidden" / "big").write_bytes(bytes(100_000))
    (place.work / "one").write_text("1")
    os.link(place.work / "one", place.work / "two")
    os.symlink("/etc/passwd", place.work / "link")
    os.symlink("/", place.work / "root")
    os.mkfifo(place.work / "pipe")
    found = snapshot(place.work, 100)
    assert (dict(found.files), found.complete) == ({}, True)
    assert found.size >= 100_000


@pytest.mark.fault("interpreter: 10,000 files in the outputs")
def test_too_many_files_are_not_all_looked_at(place: KernelFolders) -> None:
    for number in range(20):
        (place.work / str(number)).touch()
    assert not snapshot(place.work, 10).complete
    assert snapshot(place.root / "nowhere", 10).complete


@pytest.mark.fault("interpreter: files hidden from the limit in deep folders")
def test_the_room_of_files_in_deep_folders_counts_and_still_deeper_ones_are_too_many(place: KernelFolders) -> None:
    deep = place.work.joinpath(*["a"] * 20)
    deep.mkdir(parents=True)
    (deep / "large").write_bytes(bytes(100_000))
    found = snapshot(place.work, 1000)
    assert (found.complete, found.size >= 100_000) == (True, True)
    deep.joinpath(*["b"] * 100).mkdir(parents=True)
    assert not snapshot(place.work, 1000).complete


@pytest.mark.fault("interpreter: links, sockets and pipes in the outputs")
@pytest.mark.parametrize("path", ["", "..", "../log", "/etc/passwd", "a/../b", "link", "folder/passwd", "pipe", "sub"])
def test_nothing_but_a_plain_file_below_the_folder_can_be_opened(place: KernelFolders, path: str) -> None:
    (place.root / "log").write_text("the server's own")
    os.symlink("/etc/passwd", place.work / "link")
    os.symlink("/etc", place.work / "folder")
    os.mkfifo(place.work / "pipe")
    (place.work / "sub").mkdir()
    with pytest.raises(NoSuchFile):
        open_file(place.work, path)


def test_a_plain_file_is_read_up_to_the_limit(place: KernelFolders) -> None:
    (place.work / "sub").mkdir()
    (place.work / "sub" / "file").write_text("content")
    assert read_file(place.work, "sub/file", 4) == b"cont"


@pytest.mark.fault("interpreter: a link where an input goes")
def test_a_file_appears_whole_or_not_at_all_and_replaces_a_link(place: KernelFolders, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    os.symlink(victim, place.work / "data.csv")
    with NewFile(place, "data.csv") as file:
        file.write(b"half")
    assert (place.work / "data.csv").is_symlink()
    with NewFile(place, "data.csv") as file:
        file.write(b"whole")
        file.finish()
    assert (place.work / "data.csv").read_bytes() == b"whole"
    assert (victim.read_text(), os.listdir(place.work)) == ("untouched", ["data.csv"])


def test_a_folder_of_that_name_is_an_error(place: KernelFolders) -> None:
    (place.work / "data.csv").mkdir()
    with NewFile(place, "data.csv") as file, pytest.raises(OSError, match="directory"):
        file.finish()


@pytest.mark.fault("interpreter: a deleted working directory")
def test_a_working_directory_that_was_replaced_is_created_again(place: KernelFolders) -> None:
    place.work.rmdir()
    os.symlink("/etc", place.work)
    place.make()
    assert place.work.is_dir()
    assert not place.work.is_symlink()


def test_leftovers_of_dead_servers_are_deleted_and_living_ones_kept() -> None:
    with tempfile.TemporaryDirectory() as short:
        base = Path(short)
        (base / "dial-py-dead" / "kernel").mkdir(parents=True)
        with runtime_folder(base) as first, runtime_folder(base) as second:
            assert sorted(base.iterdir()) == sorted([first, second])
            assert first.stat().st_mode & 0o777 == 0o711
        assert list(base.iterdir()) == []


def test_a_folder_too_deep_for_sockets_is_not_used(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 80)
    with runtime_folder(deep) as folder:
        assert len(str(folder / "0123456789ab" / "run" / "k-1")) < 100
    assert not deep.exists()
