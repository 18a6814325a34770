"""Read, write, list, edit and search the files of a workspace: every outcome is a result with a sentence."""

import errno
import math
import os
import re
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import wraps
from itertools import islice
from time import monotonic
from typing import Concatenate, ParamSpec

from task.errors import ToolError
from task.permissions.icerc import visible
from task.tools.workspace.root import Workspace

PAGE_CHARS = 30_000
LISTED = 2_000
NOT_TEXT = "not a text file"
SHOWN_PLACES = 10
SECONDS = 10.0  # of a search, whatever its pattern is
MATCHES = 100
LINE_CHARS = 500
SEARCHED_CHARS = 5_000  # of a line, with an expression
UNFOLDED_CHARS = 10_000
GLOB_CHARS = 500
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
_COUNTS = re.compile(r"\{(?:\d*,)?(\d{1,9})")
_BRACE = re.compile(r"(?<!\\)\{(?!\d*(?:,\d*)?\})")  # not a count: to `regex`, but not to `re`, it may mean "about"
P = ParamSpec("P")


@dataclass
class FSResult:
    """The outcome of an operation on files. Source: seed 003."""

    ok: bool
    detail: str


_Work = Callable[Concatenate[Workspace, str, P], str]
_Outcome = Callable[Concatenate[Workspace, str, P], FSResult]


def _outcome(verb: str) -> Callable[[_Work[P]], _Outcome[P]]:
    """Turn what the work on a path returns or raises into a result; no exception leaves it."""

    def decorated(work: _Work[P]) -> _Outcome[P]:
        @wraps(work)
        def attempted(workspace: Workspace, path: str, /, *args: P.args, **kwargs: P.kwargs) -> FSResult:
            try:
                return FSResult(True, work(workspace, path, *args, **kwargs))
            except ToolError as error:
                reason = str(error)
            except OSError as error:
                number = error.errno or errno.EIO
                reason = _REASONS.get(number, os.strerror(number).lower())
            return FSResult(False, f"{verb}: {reason}: {path.encode(errors='backslashreplace').decode()}")

        return attempted

    return decorated


@_outcome("read")
def read(
    workspace: Workspace,
    path: str,
    first_line: int | None = None,
    last_line: int | None = None,
    room: int | None = None,
) -> str:
    """The whole text, or the lines asked for with a last line that says which ones they are.

    Of a text that is longer than `room`, in characters, those lines that fit.
    """
    text = _text(workspace.read(path))
    if first_line is None and last_line is None and (room is None or len(text) <= room):
        return text
    lines: list[str] = _LINE.findall(text)
    start = first_line or 1
    if start > max(len(lines), 1):
        raise ToolError(f"there are {len(lines)} lines, no line {start}")
    shown, end = "", start - 1
    for line in lines[start - 1 : last_line]:
        if room is not None and len(shown) + len(line) > room:
            break
        shown, end = shown + line, end + 1
    if end < start and lines:
        return f"{lines[start - 1][:room]}\n[the beginning of line {start} of {len(lines)}; the line is longer]"
    rest = f"; go on with first_line={end + 1}" if end < len(lines) else ""
    return f"{shown}{'' if shown.endswith(chr(10)) else chr(10)}[lines {start}-{end} of {len(lines)}{rest}]"


@_outcome("write")
def write(workspace: Workspace, path: str, content: str) -> str:
    """Make or replace a text file with exactly this content."""
    raw = _bytes(content)
    workspace.write(path, raw)
    lines = content.count("\n") + (not content.endswith("\n"))
    return f"wrote {path} ({lines} lines, {len(raw)} bytes)"


@_outcome("list")
def listed(workspace: Workspace, path: str) -> str:
    """The names in a folder, one a line."""
    names = [shown_path(name) for name in workspace.entries(path)]
    more = [f"[... {len(names) - LISTED:,} more]"] if len(names) > LISTED else []
    return "\n".join(names[:LISTED] + more)


@_outcome("edit")
def edit(workspace: Workspace, path: str, old_text: str, new_text: str, *, replace_all: bool = False) -> str:
    """Replace a text that occurs once (or wherever it occurs); line ends and a byte order mark stay."""
    text, there, made = _text(workspace.read(path)), old_text, new_text
    if "\r\n" in text and "\r" not in there and (there not in text or "\n" not in there):
        # A model reads and writes "\n"; the file's own line ends stay.
        there, made = there.replace("\n", "\r\n"), made.replace("\r\n", "\n").replace("\n", "\r\n")
    if not there:
        raise ToolError("old_text is empty; write a new file with fs_write")
    if there == made:
        raise ToolError("old_text and new_text are the same")
    count = text.count(there)
    if not count:
        raise ToolError("old_text is not in the file; read it again, every space and line end counts")
    found = islice(re.finditer(re.escape(there), text), SHOWN_PLACES)
    lines = [str(text.count("\n", 0, place.start()) + 1) for place in found]
    if count > 1 and not replace_all:
        where = f"lines {', '.join(lines)}{', ...' if count > SHOWN_PLACES else ''}"
        raise ToolError(f"old_text occurs {count} times ({where}); add lines around it, or set replace_all")
    workspace.write(path, _bytes(text.replace(there, made)))
    return f"edited {path} ({count} replacements)" if count > 1 else f"edited {path} (line {lines[0]})"


@_outcome("search")
def search(
    workspace: Workspace, path: str, pattern: str, *, regex: bool = False, glob: str = "", ignore_case: bool = False
) -> str:
    """The matching lines as `path:number: line`, and how many there are, in bounded time whatever the pattern is.

    Only files whose name or path fits `glob` are searched.
    """
    if not pattern:
        raise ToolError("the pattern is empty")
    if len(glob) > GLOB_CHARS:
        raise ToolError(f"the glob has more than {GLOB_CHARS} characters")
    deadline = monotonic() + SECONDS
    matches = _matcher(pattern, deadline, is_regex=regex, ignore_case=ignore_case)
    found: list[str] = []
    try:
        for file in workspace.files(path):
            if monotonic() > deadline:
                raise TimeoutError
            if glob and not (fnmatchcase(file, glob) or fnmatchcase(file.rpartition("/")[2], glob)):
                continue
            content = b"\0"
            with suppress(OSError, ToolError):  # what cannot be read is left out, as what is not text
                content = workspace.saved(file)
            if b"\0" in content:
                continue
            for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
                if matches(line):
                    found.append(f"{shown_path(file)}:{number}: {line.rstrip()[:LINE_CHARS]}")
                    if len(found) > MATCHES:
                        note = f"[the first {MATCHES} lines; narrow the search to see others]"
                        return "\n".join([*found[:MATCHES], note])
    except TimeoutError:
        note = f"[stopped after {SECONDS:g} s; narrow the search: not everything was looked at]"
        return "\n".join([*found, note])
    return "\n".join([*found, f"[{len(found)} lines]"])


def _matcher(pattern: str, deadline: float, *, is_regex: bool, ignore_case: bool) -> Callable[[str], bool]:
    if not is_regex:
        wanted = pattern.casefold()
        return (lambda line: wanted in line.casefold()) if ignore_case else (lambda line: pattern in line)
    # `regex` can be stopped, which `re` cannot. What only `regex` knows, such as recursion, may take all the memory.
    # What is repeated is unfolded, and ends the process when it gets too large.
    import regex

    pattern = _BRACE.sub(r"\\{", pattern)
    if len(pattern) * math.prod(max(int(most), 1) for most in _COUNTS.findall(pattern)) > UNFOLDED_CHARS:
        raise ToolError("the expression is too long, or repeats too much; narrow it")
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(pattern)
            compiled = regex.compile(pattern, regex.IGNORECASE if ignore_case else 0)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise ToolError(f"this is not a regular expression ({error})") from error

    def matches(line: str) -> bool:
        left = deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        return compiled.search(line[:SEARCHED_CHARS], timeout=left, concurrent=True) is not None

    return matches


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


def shown_path(path: str) -> str:
    """A path or name that is safe to show: undecodable bytes, line ends and bidirectional controls are escaped."""
    return visible(os.fsencode(path).decode(errors="backslashreplace")).replace("\n", "\\n").replace("\t", "\\t")
