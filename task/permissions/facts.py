"""What a call would touch, from its parsed arguments: URLs, hosts, paths, commands, amounts."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from posixpath import relpath
from typing import Any, cast

from task.permissions.decisions import CallRequest, Effect
from task.permissions.invocations import Invocation
from task.permissions.programs import HARMLESS_TARGETS, REACHING, Reading, reading
from task.permissions.shell import parsed
from task.permissions.taint import hosts_of, is_dial_file, is_plain, named_values, urls_in, urls_of_text

_PATHS = re.compile(r"path|file|dir|folder|cwd|root|source|dest|target", re.IGNORECASE)
_COMMANDS = frozenset({"command", "cmd", "shell", "bash", "command_line", "commandline"})
_AMOUNTS = re.compile(r"amount|price|total|sum|quantity|fee|budget|balance|payment|salary|credit", re.IGNORECASE)
_REMOTE = re.compile(r"(?:[\w.-]++@)?+([\w-]++(?:\.[\w-]++)++)(?::.*|/.*)?")
_URL = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_BETWEEN = re.compile(r"[=:,@]")
_ROOT = re.compile(r"[/~]|\.\.")
_LONGEST_PATH = 4_096


class CallFacts:
    """The facts of one call, each computed at its first use."""

    def __init__(self, request: CallRequest) -> None:
        self.request = request
        self.tool = request.call.name
        self.effects = request.effects

    @cached_property
    def urls(self) -> tuple[str, ...]:
        """The URLs in the arguments, DIAL's own files excepted."""
        request = self.request
        found = urls_in(request.arguments, request.declared, fetched=Effect.NETWORK in self.effects)
        return tuple(url for url in found if not is_dial_file(url))

    @cached_property
    def urls_known(self) -> bool:
        """Whether every URL (vacuously: none) is plain and occurs in the user's messages or in a result."""
        return all(is_plain(url) and self.request.context.knows(url) for url in self.urls)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the URLs and of the commands."""
        found = [host for url in self.urls for host in hosts_of(url)]
        found += [host for command in self.script.invocations for host in _hosts(command)]
        return tuple(dict.fromkeys(host for host in found if host))

    @cached_property
    def command(self) -> str:
        """The command line in the arguments of a tool that executes or writes; empty if there is none."""
        if not self.effects & {Effect.EXECUTE, Effect.WRITE}:
            return ""
        return "\n".join(_command_lines(self.request.arguments))

    @cached_property
    def script(self) -> Reading:
        """Every command that would run, including those that other commands start."""
        return reading(parsed(self.command)) if self.command else Reading()

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The arguments that are named like paths, and the words of commands that may point outside the workspace."""
        workspace = self.request.workspace
        named = (
            text
            for name, text in named_values(self.request.arguments)
            if len(text) <= _LONGEST_PATH and _PATHS.search(name) and "://" not in text and not is_dial_file(text)
        )
        return tuple(dict.fromkeys([*(named if workspace is None else workspace.paths), *self.leaving]))

    @cached_property
    def away(self) -> tuple[str, ...]:
        """Those of the paths that lead out of the workspace, or may do so."""
        if self.request.workspace is None:
            return tuple(filter(outside, self.paths))
        named = (path for path in self.request.workspace.paths if path.startswith("/") or path.split("/")[0] == "..")
        return (*named, *filter(outside, self.leaving))

    @cached_property
    def confined(self) -> bool:
        """Whether the call, of a workspace tool without a network, is known to lead nowhere out of its workspace."""
        if self.request.workspace is None or Effect.NETWORK in self.effects:
            return False
        return self.script.exact and self.script.complete and not (self.away or self.of_git)

    @cached_property
    def of_git(self) -> tuple[str, ...]:
        """Git's own files in the workspace that the call would change, or may change."""
        if self.request.workspace is None or not self.effects & {Effect.WRITE, Effect.EXECUTE}:
            return ()
        changing = (one for one in self.script.invocations if one.program.kind != "reads" or one.used)
        words = (part for one in changing for word in one.words for part in _parts(word))
        return tuple(filter(_is_of_git, dict.fromkeys([*self.request.workspace.paths, *words, *self.script.writes])))

    @cached_property
    def unreachable(self) -> str:
        """Why no tool of the workspace can do it, whoever allows it; empty if one can."""
        if self.request.workspace is None:
            return ""
        paths = self.request.workspace.paths
        if path := next((path for path in paths if path in self.away), ""):
            return f"path escapes sandbox: it leads out of the workspace, to {path}"
        if path := next((path for path in paths if path in self.of_git), ""):
            return f"{path} is one of git's own files; use git's commands for what may be changed there"
        return ""

    @cached_property
    def leaving(self) -> tuple[str, ...]:
        """The paths in a command line that may point outside the workspace, and the files that it redirects to."""
        found = [place for command in self.script.invocations for place in _places(command)]
        found += [target for target in self.script.reads if outside(target)]
        places = (path for path in dict.fromkeys([*found, *self.script.writes]) if path not in HARMLESS_TARGETS)
        workspace = self.request.workspace
        return tuple(places) if workspace is None else tuple(_relative(path, workspace.root) for path in places)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Every word of the commands that may be a path, or contain one."""
        words = [word for command in self.script.invocations for word in command.words]
        return tuple(dict.fromkeys([*words, *(part for word in words for part in _parts(word)), *self.script.reads]))

    @cached_property
    def amounts(self) -> tuple[str, ...]:
        """The numbers whose name suggests money or a quantity, as `name = number`."""
        named = named_values(self.request.arguments, kinds=(str, int, float))
        return tuple(f"{name} = {value}" for name, value in named if _AMOUNTS.search(name) and _is_number(value))

    @cached_property
    def text_length(self) -> int:
        """The number of characters in all strings of the arguments."""
        return sum(len(text) for _, text in named_values(self.request.arguments))


def outside(path: str) -> bool:
    """Whether a path may lead out of the workspace, which is the working directory."""
    return path.startswith(("~", "/")) or "\\" in path or ".." in path.split("/")


def _is_of_git(path: str) -> bool:
    return ".git" in path.casefold().split("/")  # some file systems know no case


def _relative(path: str, root: str) -> str:
    within = path == root or path.startswith(f"{root.rstrip('/')}/")
    return relpath(path, root) if within and not {"..", "."}.intersection(path.split("/")) else path


def _command_lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, item in cast("Mapping[str, Any]", value).items():
            if name.lower() not in _COMMANDS:
                yield from _command_lines(item)
            elif isinstance(item, str):
                yield item
            elif isinstance(item, Sequence):
                yield shlex.join(map(str, cast("Sequence[Any]", item)))


def _places(command: Invocation) -> Iterator[str]:
    if command.name in ("cd", "pushd") and (not command.operands or command.operands[0] == "-"):
        yield "~"
    for word in command.words:
        if "/" in word or ".." in word or "~" in word:
            yield from (part for part in _parts(word) if part.startswith(("/", "~")) or ".." in part.split("/"))
    for pattern in command.command.patterns:
        # A pattern such as `.?` fits the parent folder.
        segments = [".." if part[:1] == "." and fnmatchcase("..", part) else part for part in pattern.split("/")]
        if ".." in segments:
            yield "/".join(segments)


def _parts(word: str) -> Iterator[str]:
    # A word as a path, and the paths behind `--option=`, `@`, `-o` and the like.
    is_url = _URL.match(word) is not None
    if not is_url:
        yield word
    for part in _BETWEEN.split(word):
        if not (is_url and part.startswith("//")):
            yield part
    if word.startswith("-") and (start := _ROOT.search(word)) is not None:
        yield word[start.start() :]


def _hosts(command: Invocation) -> Iterator[str]:
    if command.loose:
        return
    reaching = command.program.kind in REACHING
    for word in command.words[1:]:
        urls = list(urls_of_text(word))
        yield from (host for url in urls for host in hosts_of(url))
        remote = _REMOTE.fullmatch(word) if reaching and not urls and not word.startswith("-") else None
        if remote is not None:
            yield remote[1].lower()


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return re.fullmatch(r"\W?\s?\d[\d.,' ]*\W?", value) is not None
    return not isinstance(value, bool)
