"""A workspace reaches its own files, whatever they are, and nothing outside whatever the path, sequence or race is."""

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from task.errors import ToolError
from task.tools.workspace import files as fs
from task.tools.workspace.root import MAX_BYTES, PathEscape, Workspace

SECRET = b"secret"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_bytes(SECRET)
    return folder


@pytest.fixture
def workspace(tmp_path: Path, outside: Path) -> Iterator[Workspace]:
    assert outside.is_dir()
    (tmp_path / "project").mkdir()
    with Workspace(tmp_path / "project") as made:
        yield made


@pytest.mark.fault("workspace: a path with `..`, an absolute one, or a link that leads out of the workspace")
@pytest.mark.parametrize(
    "path",
    ["../outside/secret.txt", "a/../../outside/secret.txt", "/../outside/secret.txt", "..", "~/x", "~", "./../outside"],
)
def test_a_path_that_leads_out_is_refused(workspace: Workspace, path: str) -> None:
    for attempt in (workspace.read, workspace.entries, workspace.normalised, lambda path: workspace.write(path, b"x")):
        with pytest.raises(PathEscape, match="path escapes sandbox"):
            attempt(path)


@pytest.mark.fault("workspace: a path with `..`, an absolute one, or a link that leads out of the workspace")
@pytest.mark.parametrize(
    ("target", "paths"),
    [
        ("{outside}/secret.txt", ["link"]),
        ("../outside/secret.txt", ["link"]),
        ("/proc/self/root/etc/hostname", ["link"]),
        ("{outside}", ["link", "link/secret.txt", "link/new.txt", "link/new/new.txt"]),
    ],
)
def test_a_link_that_leads_out_is_not_followed(
    workspace: Workspace, outside: Path, target: str, paths: list[str]
) -> None:
    (workspace.path / "link").symlink_to(target.format(outside=outside))
    for path in paths:
        for attempt in (workspace.read, workspace.entries, lambda path: workspace.write(path, b"x")):
            with pytest.raises((OSError, ToolError)):
                attempt(path)
    assert (workspace.entries("."), list(workspace.files("."))) == (["link"], [])
    assert (workspace.path / "link").is_symlink()
    assert [file.name for file in outside.iterdir()] == ["secret.txt"]
    assert (outside / "secret.txt").read_bytes() == SECRET


def test_links_inside_are_followed_and_normalised_away(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "real" / "deep" / "file.txt").write_bytes(b"1")
    (tmp_path / "folder").symlink_to("real/deep")
    (tmp_path / "file").symlink_to("folder/file.txt")
    with Workspace(tmp_path) as workspace:
        assert workspace.normalised("file") == "real/deep/file.txt"
        assert workspace.normalised("folder/new/one.txt") == "real/deep/new/one.txt"
        assert workspace.normalised("folder/..") == "."
        assert workspace.read("folder/file.txt") == b"1"
        workspace.write("file", b"2")
        assert workspace.entries(".") == ["file", "folder/", "real/"]
    assert (tmp_path / "file").is_symlink()
    assert (tmp_path / "real" / "deep" / "file.txt").read_bytes() == b"2"


@pytest.mark.fault("workspace: a path with `..`, an absolute one, or a link that leads out of the workspace")
def test_a_path_from_the_root_counts_from_the_workspace(workspace: Workspace) -> None:
    workspace.write("/src/app.py", b"1")
    assert (workspace.path / "src" / "app.py").read_bytes() == b"1"
    assert workspace.read(str(workspace.path / "src" / "app.py")) == b"1"
    assert workspace.normalised("/src//./x/../app.py") == "src/app.py"
    assert workspace.normalised("/") == workspace.normalised("") == workspace.normalised(str(workspace.path)) == "."


@pytest.mark.fault("workspace: a path with NUL or half a character, too long, or one whose name is no text")
@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 300, "/".join(["d"] * 3000)])
def test_what_no_file_can_be_called_is_refused(workspace: Workspace, path: str) -> None:
    for attempt in (workspace.read, lambda path: workspace.write(path, b"x")):
        with pytest.raises((OSError, ToolError)):
            attempt(path)
    assert workspace.entries(".") == []
    name = os.fsdecode(b"caf\xe9")
    workspace.write(f"{name}/{name}", b"1")
    assert workspace.entries(".") == [f"{name}/"]
    assert list(workspace.files(".")) == [f"{name}/{name}"]
    assert workspace.read(f"{name}/{name}") == b"1"


@pytest.mark.fault("workspace: a hard link to a file outside, made before")
def test_writing_keeps_the_mode_and_puts_another_file_in_its_place(workspace: Workspace, outside: Path) -> None:
    twin = workspace.path / "twin.sh"
    twin.hardlink_to(outside / "secret.txt")
    twin.chmod(0o754)
    workspace.write("twin.sh", b"new")
    assert stat.S_IMODE(twin.stat().st_mode) == 0o754
    assert (twin.read_bytes(), (outside / "secret.txt").read_bytes()) == (b"new", SECRET)
    assert workspace.entries(".") == ["twin.sh"]


@pytest.mark.fault("workspace: a folder, pipe or socket in the place of a file")
def test_what_is_no_regular_file_is_neither_read_nor_replaced(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.path)  # a socket's address is short
    os.mkfifo(workspace.path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("s")
        (workspace.path / "folder").mkdir()
        for name in ("fifo", "s", "folder"):
            for attempt in (workspace.read, lambda path: workspace.write(path, b"x")):
                with pytest.raises((OSError, ToolError)):
                    attempt(name)
        assert workspace.entries(".") == ["fifo", "folder/", "s"]
    with Workspace(Path("/dev")) as devices, pytest.raises((OSError, ToolError)):
        devices.read("zero")


@pytest.mark.fault("workspace: a file of a gigabyte in a workspace")
def test_a_file_of_a_gigabyte_is_refused_without_being_read(workspace: Workspace) -> None:
    with (workspace.path / "big").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(ToolError, match="too large"):
        workspace.read("big")
    with pytest.raises(ToolError, match="too large"):
        workspace.write("big", b"x" * (MAX_BYTES + 1))
    assert (workspace.path / "big").stat().st_size == 2**30


@pytest.mark.fault("workspace: a write into `.git`, in whatever spelling, or one that makes a folder a repository")
@pytest.mark.parametrize(
    "path",
    [
        ".git/config", ".git/hooks/pre-commit", ".git/new", ".git", "sub/.git", "sub/.git/config", ".GIT/config",
        ".git./config", ".g\u200cit/config", "git~1/config", ".git::$INDEX_ALLOCATION/config", ".gitattributes",
        "deep/.gitattributes", ".gitmodules", "link/config",
    ],
)  # fmt: skip
def test_what_belongs_to_git_is_not_written(workspace: Workspace, path: str) -> None:
    (workspace.path / ".git" / "hooks").mkdir(parents=True)
    (workspace.path / "link").symlink_to(".git")
    with pytest.raises((OSError, ToolError)):
        workspace.write(path, b"x")
    assert [file for file in workspace.path.rglob("*") if file.is_file()] == []
    workspace.write(".gitignore", b"*.log\n")
    workspace.write(".github/workflows/test.yml", b"on: push\n")


@pytest.mark.fault("workspace: a write into `.git`, in whatever spelling, or one that makes a folder a repository")
@pytest.mark.parametrize("last", ["config", "HEAD", "objects/x", "refs/x", "hooks/post-checkout"])
def test_a_folder_cannot_be_made_into_a_repository_and_one_that_is_bare_is_written_by_git_only(
    workspace: Workspace, last: str
) -> None:
    written: list[str] = []
    for path in ("config", "HEAD", "objects/x", "refs/x", "hooks/post-checkout", last):
        with suppress(ToolError):
            workspace.write(f"sub/{path}", b"x")
            written.append(path.split("/", maxsplit=1)[0])
    assert not {"HEAD", "objects", "refs"} <= set(written)
    for folder in ("bare/objects", "bare/refs", "bare/hooks"):
        (workspace.path / folder).mkdir(parents=True)
    (workspace.path / "bare" / "HEAD").write_bytes(b"ref: refs/heads/main\n")
    with pytest.raises(ToolError, match="repository"):
        workspace.write("bare/hooks/post-update", b"x")


@pytest.mark.fault("workspace: a place that may not be written")
def test_a_place_or_file_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    with Workspace(Path("/proc/sys/kernel")) as workspace, pytest.raises(OSError, match=r"denied|[Rr]ead-only|No such"):
        workspace.write("anything", b"x")
    kept = tmp_path / "kept.txt"
    kept.write_bytes(b"old")
    kept.chmod(0o444)
    with Workspace(tmp_path) as workspace:
        if os.access(kept, os.W_OK):  # root
            workspace.write("kept.txt", b"new")
            assert stat.S_IMODE(kept.stat().st_mode) == 0o444
            return
        with pytest.raises(PermissionError):
            workspace.write("kept.txt", b"new")
    assert kept.read_bytes() == b"old"


@pytest.mark.fault("workspace: a folder with very many files, or a very deep tree")
def test_files_are_found_in_order_without_what_nobody_wrote_however_deep(workspace: Workspace) -> None:
    for path in ("b/2.py", "a.py", "b/1.py", "c.py"):
        workspace.write(path, b"1")
    for ignored in (".git", "node_modules", "b/__pycache__"):
        (workspace.path / ignored).mkdir()
        (workspace.path / ignored / "x.py").write_bytes(b"1")
    assert list(workspace.files(".")) == ["a.py", "c.py", "b/1.py", "b/2.py"]
    assert list(workspace.files("b/1.py")) == ["b/1.py"]
    with pytest.raises(FileNotFoundError):
        list(workspace.files("missing"))
    leaf = Path(workspace.path, *["d"] * 300, "leaf")
    leaf.parent.mkdir(parents=True)
    leaf.touch()
    assert list(workspace.files("d")) == ["d/" * 300 + "leaf"]


@pytest.mark.fault("workspace: a workspace that is removed during a run")
def test_a_workspace_that_has_been_removed_has_no_files(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    with Workspace(tmp_path / "gone") as workspace:
        (tmp_path / "gone").rmdir()
        assert workspace.normalised("a.txt") == "a.txt"
        with pytest.raises(FileNotFoundError):
            workspace.read("a.txt")
        with pytest.raises(OSError, match="No such"):
            workspace.write("a.txt", b"x")


CANARY = "the canary that nobody may read"
PARTS = st.sampled_from(["a", "link", "canary.txt", "..", "outside", ".git", "HEAD", "", "~"])
PATHS = st.builds(
    lambda start, parts: start + "/".join(parts),
    st.sampled_from(["", "link/", "/", "{top}/outside/", "{top}/project/"]),
    st.lists(PARTS, min_size=1, max_size=4),
)
TARGETS = st.sampled_from(
    ["..", "../outside", "../..", "{top}/outside", "{top}/outside/canary.txt", "/proc/self/root", "a", "link"]
)
# By the agent: read, write, edit, list, search. By a command that runs beside it: link, move, folder.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["read", "write", "edit", "list", "search", "link", "move", "folder"]), PATHS, PATHS, TARGETS
    ),
    min_size=1,
    max_size=12,
)


def tree(top: Path) -> dict[str, tuple[bytes, int]]:
    """Everything below a folder, by path: content and mode."""
    found = {str(path.relative_to(top)): path for path in top.rglob("*")}
    return {name: (b"" if path.is_dir() else path.read_bytes(), path.lstat().st_mode) for name, path in found.items()}


@pytest.mark.fault("workspace: a path with `..`, an absolute one, or a link that leads out of the workspace")
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
@example(
    steps=[("link", "link", "", "{top}/outside"), ("read", "link/canary.txt", "", ""), ("write", "link/a/x", "", "")]
)
def test_no_sequence_of_operations_touches_anything_outside(steps: list[tuple[str, str, str, str]]) -> None:
    with TemporaryDirectory() as folder:
        top = Path(folder).resolve()
        (top / "project").mkdir()
        (top / "outside" / "a").mkdir(parents=True)
        (top / "outside" / "canary.txt").write_text(CANARY)
        before = tree(top / "outside")
        with Workspace(top / "project") as workspace:
            for kind, path, other, target in steps:
                detail = _taken(workspace, kind, *(text.format(top=top) for text in (path, other, target)))
                assert CANARY not in detail
        assert tree(top / "outside") == before
        assert sorted(path.name for path in top.iterdir()) == ["outside", "project"]
        assert not (top / "project" / ".git" / "HEAD").is_file()


def _taken(workspace: Workspace, kind: str, path: str, other: str, target: str) -> str:
    agent: dict[str, Callable[[], fs.FSResult]] = {
        "read": lambda: fs.read(workspace, path, room=fs.PAGE_CHARS),
        "write": lambda: fs.write(workspace, path, "written"),
        "edit": lambda: fs.edit(workspace, path, "canary", "edited"),
        "list": lambda: fs.listed(workspace, path),
        "search": lambda: fs.search(workspace, path, "canary that"),
    }
    if kind in agent:
        return agent[kind]().detail
    # The command is confined: it makes any link, but only inside.
    with suppress(OSError, ToolError):
        place, elsewhere = (_inside(workspace, text) for text in (path, other))
        match kind:
            case "link":
                place.symlink_to(target)
            case "move":
                place.rename(elsewhere)
            case _:
                place.mkdir(parents=True)
    return ""


def _inside(workspace: Workspace, path: str) -> Path:
    # The folder is where it seems to be; the last part may be a link.
    above, name = os.path.split(workspace.path / workspace._relative(path))
    if os.path.realpath(above) != above or ".git" in above:
        raise OSError
    return Path(above, name)


@pytest.mark.fault("workspace: a folder or file swapped for a link during a read or write")
@pytest.mark.parametrize("rounds", [500, pytest.param(10_000, marks=pytest.mark.system)])
def test_a_link_swapped_in_for_a_folder_or_a_file_leads_nowhere(tmp_path: Path, rounds: int) -> None:
    project, outside, stop = tmp_path / "project", tmp_path / "outside", threading.Event()
    for folder in (project, outside):
        folder.mkdir()
    (outside / "file.txt").write_text(CANARY)
    (project / "link").symlink_to(outside)

    def swap() -> None:
        for number in count():
            if stop.is_set():
                return
            (project / "other").unlink(missing_ok=True)
            (project / "other").symlink_to(outside / "file.txt")
            (project / "other").rename(project / "file.txt")
            for old, new in (("d", f"kept{number}"), ("link", "d"), ("d", "link")):
                with suppress(OSError):  # a write has made `d` again
                    (project / old).rename(project / new)

    swapping = threading.Thread(target=swap)
    swapping.start()
    seen: set[str] = set()
    try:
        with Workspace(project) as workspace:
            for _ in range(rounds):
                for path in ("d/file.txt", "file.txt", "d/new/file.txt"):
                    seen.add(fs.write(workspace, path, "inside").detail)
                    seen.add(fs.read(workspace, path).detail)
                seen.add(fs.listed(workspace, "d").detail)
    finally:
        stop.set()
        swapping.join(60)
    assert not any(CANARY in text for text in seen)
    assert [path.name for path in outside.iterdir()] == ["file.txt"]
    assert (outside / "file.txt").read_text() == CANARY
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "project"]
