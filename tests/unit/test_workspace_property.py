"""No sequence of operations, and no race with renames, reads or changes anything outside the workspace."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from task.errors import ToolError
from task.tools.workspace import files as fs
from task.tools.workspace.files import Query
from task.tools.workspace.root import Workspace

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
        "search": lambda: fs.search(workspace, path, Query("canary that")),
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
