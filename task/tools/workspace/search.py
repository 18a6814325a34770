"""Find lines in the files of a workspace, in bounded time whatever the pattern is."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from time import monotonic

from task.errors import ToolError
from task.permissions.icerc import visible
from task.tools.workspace.root import Workspace

SECONDS = 10.0
MATCHES = 100
LINE_CHARS = 500
SEARCHED_CHARS = 5_000  # of a line, with an expression
UNFOLDED_CHARS = 10_000
GLOB_CHARS = 500
_COUNTS = re.compile(r"\{(?:\d*,)?(\d{1,9})")
_BRACE = re.compile(r"(?<!\\)\{(?!\d*(?:,\d*)?\})")  # not a count: to `regex`, but not to `re`, it may mean "about"


@dataclass(frozen=True, slots=True)
class Query:
    """What a line must contain, in the files whose name or path fits `glob`."""

    pattern: str
    regex: bool = False
    glob: str = ""
    ignore_case: bool = False


def searched(workspace: Workspace, query: Query, path: str) -> str:
    """The matching lines as `path:number: line`, and how many there are.

    Raises:
        ToolError, OSError: the pattern or the path cannot be used.
    """
    deadline = monotonic() + SECONDS
    matches = _matcher(query, deadline)
    found: list[str] = []
    try:
        for line in _lines(workspace, query, path, matches, deadline):
            found.append(line)
            if len(found) > MATCHES:
                return "\n".join([*found[:MATCHES], f"[the first {MATCHES} lines; narrow the search to see others]"])
    except TimeoutError:
        note = f"[stopped after {SECONDS:g} s; narrow the search: not everything was looked at]"
        return "\n".join([*found, note])
    return "\n".join([*found, f"[{len(found)} lines]"])


def _lines(
    workspace: Workspace, query: Query, path: str, matches: Callable[[str], bool], deadline: float
) -> Iterator[str]:
    for file in workspace.files(path):
        if monotonic() > deadline:
            raise TimeoutError
        if query.glob and not (fnmatchcase(file, query.glob) or fnmatchcase(file.rpartition("/")[2], query.glob)):
            continue
        try:
            content = workspace.read(file)
        except (OSError, ToolError):
            continue
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
            if matches(line):
                yield f"{shown_path(file)}:{number}: {line.rstrip()[:LINE_CHARS]}"


def _matcher(query: Query, deadline: float) -> Callable[[str], bool]:
    if not query.pattern:
        raise ToolError("the pattern is empty")
    if len(query.glob) > GLOB_CHARS:
        raise ToolError(f"the glob has more than {GLOB_CHARS} characters")
    if query.regex:
        return _expression(query, deadline)
    wanted = query.pattern.casefold()
    return (lambda line: wanted in line.casefold()) if query.ignore_case else (lambda line: query.pattern in line)


def _expression(query: Query, deadline: float) -> Callable[[str], bool]:
    # `regex` can be stopped, which `re` cannot. What only `regex` knows, such as recursion, may take all the memory.
    # What is repeated is unfolded, and ends the process when it gets too large.
    import regex

    pattern = _BRACE.sub(r"\\{", query.pattern)
    if len(pattern) * math.prod(max(int(most), 1) for most in _COUNTS.findall(pattern)) > UNFOLDED_CHARS:
        raise ToolError("the expression is too long, or repeats too much; narrow it")
    try:
        with warnings.catch_warnings(action="ignore"):
            re.compile(pattern)
            compiled = regex.compile(pattern, regex.IGNORECASE if query.ignore_case else 0)
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise ToolError(f"this is not a regular expression ({error})") from error

    def matches(line: str) -> bool:
        left = deadline - monotonic()
        if left <= 0:
            raise TimeoutError
        return compiled.search(line[:SEARCHED_CHARS], timeout=left, concurrent=True) is not None

    return matches


def shown_path(path: str) -> str:
    """A path or name that is safe to show: undecodable bytes, line ends and bidirectional controls are escaped."""
    return visible(os.fsencode(path).decode(errors="backslashreplace")).replace("\n", "\\n").replace("\t", "\\t")
