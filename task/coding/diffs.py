"""Differences of two trees in Git's format, which `git apply` and `patch` take, and what no diff shows."""

import difflib
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import takewhile
from pathlib import Path

from task.tools.workspace.snapshots import Entry, Pair, SnapshotError, walked
from task.tools.workspace.undo import some_of

SHOWN = ("file", "link", "opaque")
MOST_LINES = 5_000  # of both files
LARGEST = 4 << 20  # bytes of a file whose lines are compared
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n"})
LOADED = frozenset({"node_modules", ".venv", "__pycache__", ".tox", ".nox"})
OF_GIT = ("config", "config.worktree", "commondir", "hooks")  # by which git runs programs
# The topmost such folder of a path, and the next name in it.
_UNSEEN = re.compile(rf"((?:.*?/)?({'|'.join(map(re.escape, [*sorted(LOADED), '.git']))}))(?:/([^/]*).*)?", re.DOTALL)
MOST = 5
OF_PROGRAMS = "Changed where no diff shows it and undo does not reach: {}. Make it again if you do not trust the run."
OF_REPOSITORIES = "Changed without a trace in the diff: {}. Git runs programs named there; look before you use git."


@dataclass(frozen=True, slots=True)
class FileDiff:
    """What became of one file; `text` ends with a newline. Lines are not counted where none are shown."""

    path: str
    text: str
    added: int = 0
    removed: int = 0

    @property
    def is_new(self) -> bool:
        """Whether the file was not there before."""
        return self.text.partition("\n")[2].startswith("new file mode")


def file_diffs(pairs: Mapping[str, Pair], content: Callable[[Entry], bytes]) -> list[FileDiff]:
    """The differences of files and links in order of their paths; Git's own files and folders are left out."""
    found = [
        _file_diff(path, before, after, content)
        for path, (before, after) in sorted(pairs.items())
        if ".git" not in path.split("/") and any(item is not None and item.kind in SHOWN for item in (before, after))
    ]
    return [item for item in found if item.text]


def _file_diff(path: str, before: Entry | None, after: Entry | None, content: Callable[[Entry], bytes]) -> FileDiff:
    if before is not None and after is not None and {before.kind, after.kind} == {"file", "link"}:
        parts = [_file_diff(path, before, None, content), _file_diff(path, None, after, content)]
        text = "".join(item.text for item in parts)
        return FileDiff(path, text, sum(item.added for item in parts), sum(item.removed for item in parts))
    old_name, new_name = _quoted(f"a/{path}"), _quoted(f"b/{path}")
    (old_mode, old), (new_mode, new) = _side(before, content), _side(after, content)
    head = f"diff --git {old_name} {new_name}\n"
    if old_mode is None:
        head, old_name = f"{head}new file mode {new_mode}\n", "/dev/null"
    elif new_mode is None:
        head, new_name = f"{head}deleted file mode {old_mode}\n", "/dev/null"
    elif old_mode != new_mode:
        head += f"old mode {old_mode}\nnew mode {new_mode}\n"
    if before is not None and after is not None and (before.kind, before.content) == (after.kind, after.content):
        return FileDiff(path, head if old_mode != new_mode else "")  # Git does not know every mode
    if old is None or new is None or _too_different(old, new):
        return FileDiff(path, f"{head}Binary files {old_name} and {new_name} differ\n")
    lines = list(difflib.unified_diff(old, new, old_name, new_name))
    text = "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
    added, removed = (sum(line.startswith(sign) for line in lines[2:]) for sign in "+-")
    return FileDiff(path, head + text, added, removed)


def _side(entry: Entry | None, content: Callable[[Entry], bytes]) -> tuple[str | None, list[str] | None]:
    # Git's mode, None where nothing is shown, and the lines with their ends, None where it is not text.
    if entry is None or entry.kind not in SHOWN:
        return None, []
    mode = "120000" if entry.kind == "link" else "100755" if entry.mode & 0o100 else "100644"
    if entry.kind == "opaque" or entry.size > LARGEST:
        return mode, None
    try:
        text = (os.fsencode(entry.content) if entry.kind == "link" else content(entry)).decode()
    except (UnicodeDecodeError, SnapshotError):  # the second: it was not kept
        return mode, None
    return mode, None if "\0" in text else list(StringIO(text))


def _too_different(old: list[str], new: list[str]) -> bool:
    # What is between the first and the last change: the time to compare grows with the product of both.
    same = 0
    for one, other in ((old, new), (old[::-1], new[::-1])):
        same += sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
    return len(old) + len(new) - 2 * min(same, len(old), len(new)) > MOST_LINES


def _quoted(name: str) -> str:
    # As Git writes names that are not plain: escaped, and in quotes.
    written = "".join(
        char if char.isprintable() else "".join(f"\\{byte:03o}" for byte in os.fsencode(char))
        for char in name.translate(_ESCAPES)
    )
    return name if written == name else f'"{written}"'


def unseen_changes(workspace: Path, since_ns: int) -> list[str]:
    """Sentences that name the places in which something has changed since that time; none if there are none."""
    found = {OF_PROGRAMS: set[str](), OF_REPOSITORIES: set[str]()}
    for path, _, entry in walked(workspace, ignored=frozenset()):
        # The time is that of the last change of its state, which no program can set.
        match = _UNSEEN.fullmatch(path) if entry.changed_ns > since_ns else None
        if match is None:
            continue
        place, name, inside = match.groups()
        if name != ".git":
            found[OF_PROGRAMS].add(place)
        elif inside in OF_GIT or (inside is None and entry.kind == "file"):
            found[OF_REPOSITORIES].add(place)
    return [sentence.format(some_of(sorted(places), MOST)) for sentence, places in found.items() if places]
