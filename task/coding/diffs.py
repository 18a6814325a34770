"""Differences of two trees in Git's format, which `git apply` and `patch` take, and what no diff shows."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import takewhile
from pathlib import Path

from task.coding.snapshots import Entry, Pair, SnapshotError, walked

SHOWN = ("file", "link", "opaque")
MOST_LINES = 5_000  # between the first and the last change: the time to compare grows with their product
LARGEST = 4 << 20  # bytes of a file whose lines are compared
_PLAIN = str.maketrans({"\\": "\\\\", '"': '\\"', "\t": "\\t", "\n": "\\n"})
LOADED = frozenset({"node_modules", ".venv", "__pycache__", ".tox", ".nox"})
OF_GIT = ("config", "config.worktree", "commondir", "hooks")  # by which git runs programs
MOST = 5
OF_PROGRAMS = "Changed where no diff shows it and undo does not reach: {}. Make it anew if you do not trust the run."
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


def whole(diffs: Iterable[FileDiff]) -> str:
    """One text of all."""
    return "".join(item.text for item in diffs)


def _file_diff(path: str, before: Entry | None, after: Entry | None, content: Callable[[Entry], bytes]) -> FileDiff:
    if before is not None and after is not None and {before.kind, after.kind} == {"file", "link"}:
        parts = [_file_diff(path, before, None, content), _file_diff(path, None, after, content)]
        return FileDiff(path, whole(parts), sum(item.added for item in parts), sum(item.removed for item in parts))
    old_name, new_name = _quoted(f"a/{path}"), _quoted(f"b/{path}")
    head = [f"diff --git {old_name} {new_name}"]
    (old_mode, old), (new_mode, new) = _side(before, content), _side(after, content)
    if old_mode is None:
        head.append(f"new file mode {new_mode}")
    elif new_mode is None:
        head.append(f"deleted file mode {old_mode}")
    elif old_mode != new_mode:
        head += [f"old mode {old_mode}", f"new mode {new_mode}"]
    if before is not None and after is not None and (before.kind, before.content) == (after.kind, after.content):
        # Git does not know every mode, such as one of a group.
        return FileDiff(path, "\n".join(head) + "\n" if old_mode != new_mode else "")
    lines = _hunks(old, new) if old is not None and new is not None else None
    old_name, new_name = old_name if old_mode else "/dev/null", new_name if new_mode else "/dev/null"
    if lines is None:
        return FileDiff(path, "\n".join([*head, f"Binary files {old_name} and {new_name} differ\n"]))
    if lines:
        head += [f"--- {old_name}", f"+++ {new_name}"]
    counts = [sum(line.startswith(sign) for line in lines) for sign in "+-"]
    return FileDiff(path, "\n".join([*head, "".join(lines)]), *counts)


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


def _hunks(old: list[str], new: list[str]) -> list[str] | None:
    # None where there is too much to compare between the first and the last change.
    start, end = _same(old, new), _same(old[::-1], new[::-1])
    if len(old) + len(new) - 2 * min(start + end, len(old), len(new)) > MOST_LINES:
        return None
    lines = list(difflib.unified_diff(old, new))[2:]
    return [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]


def _same(one: list[str], other: list[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _quoted(name: str) -> str:
    # As Git writes names that are not plain: escaped, and in quotes.
    if name.isprintable() and '"' not in name and "\\" not in name:
        return name
    parts = list[str]()
    for char in name:
        if char.isprintable() or ord(char) in _PLAIN:
            parts.append(char.translate(_PLAIN))
        else:
            parts += (f"\\{byte:03o}" for byte in os.fsencode(char))
    return f'"{"".join(parts)}"'


def unseen_changes(workspace: Path, since_ns: int) -> list[str]:
    """Sentences that name the places in which something has changed since that time; none if there are none."""
    programs, repositories = set[str](), set[str]()
    for path, _, entry in walked(workspace, ignored=frozenset()):
        if entry.changed_ns <= since_ns:  # the time of the last change of its state, which no program can set
            continue
        parts = path.split("/")
        place = next((number for number, part in enumerate(parts, 1) if part in LOADED or part == ".git"), 0)
        named, rest = "/".join(parts[:place]), parts[place:]
        if place and parts[place - 1] != ".git":
            programs.add(named)
        elif place and (rest[0] in OF_GIT if rest else entry.kind == "file"):
            repositories.add(named)
    sentences = list[str]()
    for sentence, places in ((OF_PROGRAMS, sorted(programs)), (OF_REPOSITORIES, sorted(repositories))):
        more = f" and {len(places) - MOST} more" if len(places) > MOST else ""
        if places:
            sentences.append(sentence.format(", ".join(places[:MOST]) + more))
    return sentences
