"""Read, write, list and edit the files of a workspace: every outcome is a result with a sentence, none an exception."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass

from task.errors import ToolError
from task.tools.workspace.root import Workspace
from task.tools.workspace.search import Query, searched, shown_path

PAGE_CHARS = 30_000
LISTED = 2_000
NOT_TEXT = "not a text file"
COMPARED_LINES = 1_000_000
_REASONS = {
    errno.ENOENT: "not found",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOTDIR: "not a directory",
    errno.EISDIR: "is a directory",
    errno.ELOOP: "leads through a symbolic link that is not followed",
    errno.ENXIO: "not a regular file",
    errno.ENODEV: "not a regular file",
}
_LINE = re.compile(r"[^\n]*\n|[^\n]+")  # editors and compilers count by these line ends only


@dataclass
class FSResult:
    """The outcome of an operation on files. Source: seed 003."""

    ok: bool
    detail: str


def read(
    workspace: Workspace,
    path: str,
    first: int | None = None,
    last: int | None = None,
    room: int | None = None,
) -> FSResult:
    """The whole text, or the lines asked for with a last line that says which ones they are.

    Of a text that is longer than `room`, in characters, those lines that fit.
    """

    def work() -> str:
        text = _text(workspace.read(path))
        whole = first is None and last is None and (room is None or len(text) <= room)
        return text if whole else _lines(text, first or 1, last, room)

    return _attempted("read", path, work)


def write(workspace: Workspace, path: str, content: str) -> FSResult:
    """Make or replace a text file with exactly this content."""

    def work() -> str:
        raw = _bytes(content)
        workspace.write(path, raw)
        lines = content.count("\n") + (not content.endswith("\n"))
        return f"wrote {path} ({lines} lines, {len(raw)} bytes)"

    return _attempted("write", path, work)


def listed(workspace: Workspace, path: str) -> FSResult:
    """The names in a folder, one a line."""

    def work() -> str:
        names = [shown_path(name) for name in workspace.entries(path)]
        more = [f"[... {len(names) - LISTED:,} more]"] if len(names) > LISTED else []
        return "\n".join(names[:LISTED] + more)

    return _attempted("list", path, work)


def edit(workspace: Workspace, path: str, old: str, new: str, *, replace_all: bool = False) -> FSResult:
    """Replace a text that occurs once (or wherever it occurs); line ends and a byte order mark stay."""

    def work() -> str:
        text, there, made = _text(workspace.read(path)), old, new
        if "\r\n" in text and "\r" not in old and (old not in text or "\n" not in old):
            # A model reads and writes "\n"; the file's own line ends stay.
            there, made = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
        count = text.count(there) if there else 0
        if not there:
            raise ToolError("old_text is empty; write a new file with fs_write")
        if there == made:
            raise ToolError("old_text and new_text are the same")
        if not count:
            raise ToolError(f"old_text is not in the file{_near(text, there)}")
        if count > 1 and not replace_all:
            numbers = _places(text, there)
            raise ToolError(f"old_text occurs {count} times ({numbers}); add lines around it, or set replace_all")
        workspace.write(path, _bytes(text.replace(there, made)))
        line = text[: text.index(there)].count("\n") + 1
        return f"edited {path} ({count} replacements)" if count > 1 else f"edited {path} (line {line})"

    return _attempted("edit", path, work)


def search(workspace: Workspace, query: Query, path: str = ".") -> FSResult:
    """The lines that contain a text, each with its file and number."""
    return _attempted("search", path, lambda: searched(workspace, query, path))


def _attempted(verb: str, path: str, work: Callable[[], str]) -> FSResult:
    try:
        return FSResult(True, work())
    except ToolError as error:
        reason = str(error)
    except OSError as error:
        number = error.errno or errno.EIO
        reason = _REASONS.get(number, os.strerror(number).lower())
    return FSResult(False, f"{verb}: {reason}: {path.encode(errors='backslashreplace').decode()}")


def _text(content: bytes) -> str:
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ToolError(f"{NOT_TEXT} (not UTF-8)") from error
    if "\0" in text:
        raise ToolError(f"{NOT_TEXT} (it has NUL characters)")
    return text


def _bytes(text: str) -> bytes:
    if "\0" in text:
        raise ToolError("a text file has no NUL characters")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ToolError("a text file has no halves of characters") from error


def _lines(text: str, first: int, last: int | None, room: int | None = None) -> str:
    lines: list[str] = _LINE.findall(text)
    if first > max(len(lines), 1):
        raise ToolError(f"there are {len(lines)} lines, no line {first}")
    shown = ""
    end = first - 1
    for line in lines[first - 1 : last]:
        if room is not None and len(shown) + len(line) > room:
            break
        shown, end = shown + line, end + 1
    if end < first and lines:
        return f"{lines[first - 1][:room]}\n[the beginning of line {first} of {len(lines)}; the line is longer]"
    rest = f"; go on with first_line={end + 1}" if end < len(lines) else ""
    return f"{shown}{'' if shown.endswith(chr(10)) else chr(10)}[lines {first}-{end} of {len(lines)}{rest}]"


def _places(text: str, old: str, most: int = 10) -> str:
    numbers: list[str] = []
    start = text.find(old)
    while start >= 0 and len(numbers) < most:
        numbers.append(str(text.count("\n", 0, start) + 1))
        start = text.find(old, start + len(old))
    return f"lines {', '.join(numbers)}{', ...' if start >= 0 else ''}"


def _near(text: str, old: str) -> str:
    """Where the text is but for the white space at the ends of its lines."""
    wanted = [line.strip() for line in old.strip().split("\n")]
    lines = [line.strip() for line in text.split("\n")]
    tries = len(lines) - len(wanted) + 1
    for start in range(tries if tries * len(wanted) <= COMPARED_LINES else 0):
        if any(wanted) and lines[start : start + len(wanted)] == wanted:
            end = start + len(wanted)
            return f"; lines {start + 1}-{end} differ from it in white space only, read them again"
    return "; read it again, every space and line end counts"
