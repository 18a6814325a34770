"""What a call would touch, from its parsed arguments: URLs, hosts, paths, commands."""

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from posixpath import relpath

from task.permissions.arguments import addresses, command_lines, named_hosts, named_values, sent_length
from task.permissions.decisions import CallRequest, Effect
from task.permissions.hosts import host_of, is_usual, words_of
from task.permissions.programs import HARMLESS_TARGETS, REACHING, kind_of
from task.permissions.shell import Script, parsed
from task.permissions.taint import hosts_of, is_dial_file, is_plain, urls_in

_PATHS = re.compile(r"path|file|dir|folder|cwd|root|source|dest|target", re.IGNORECASE)
_REMOTE = re.compile(r"(?>(?:[\w.-]++@)?)([\w-]++(?>(?:\.[\w-]++)+))(?::.*|/.*)?")
_URL = re.compile(r"(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_BETWEEN = re.compile(r"[=:,@]")
_ROOT = re.compile(r"[/~]|\.\.")
_LONGEST_PATH = 4_096
MOST_URLS = 2_000  # a call with more fits every rule that denies or asks by host, and none that allows
FREE_CHARACTERS = 200  # a search this short may leave a conversation that contains text from outside
FREE_NAMES = 10  # known addresses and files that count as nothing: which of them are chosen says something, too
_LONGEST_READ = FREE_CHARACTERS + FREE_NAMES * 1_000  # a longer call asks whatever is in it
_NAME = re.compile(r"[./]\w")
_IN_PYTHON = frozenset({"execute_code", "python_run"})  # our own, whose code is not a command line


class CallFacts:
    """The facts of one call, each computed at its first use.

    `command` is the command line in the arguments of a tool that executes or writes, if there is one; `unread`: the
    call may run commands that were not recognised in them.
    """

    def __init__(self, request: CallRequest) -> None:
        self.request = request
        self.tool = request.call.name
        self.effects = request.effects
        executes = Effect.EXECUTE in self.effects
        if self.tool in _IN_PYTHON or not (executes or Effect.WRITE in self.effects):
            in_folder = self.effects <= {Effect.EXECUTE} or request.workspace is not None
            self.command, self.unread = "", executes and not in_folder
        else:
            self.command, whole = command_lines(request.arguments, executes=executes)
            self.unread = not whole and (executes or bool(self.command))

    @cached_property
    def urls(self) -> tuple[str, ...]:
        """The URLs in the arguments, DIAL's own files excepted."""
        found = urls_in(self.request.arguments, fetched=Effect.NETWORK in self.effects)
        distinct = dict.fromkeys(url for url in found if not is_dial_file(url))
        return tuple(islice(distinct, MOST_URLS + 1))

    @cached_property
    def addresses(self) -> tuple[str, ...]:
        """The words that name a machine under any name, in a call to the network that is not too long anyway.

        Those of a command are read with it.
        """
        reads = Effect.NETWORK in self.effects and not self.command and self.text_length <= _LONGEST_READ
        return tuple(dict.fromkeys(addresses(self.request.arguments))) if reads else ()

    @cached_property
    def urls_known(self) -> bool:
        """Whether every URL (vacuously: none) is plain and occurs in the user's messages or in a result.

        After text from outside the same holds for every word that names a machine.
        """
        context = self.request.context
        named = self.addresses if context.tainted else ()
        return (
            len(self.urls) <= MOST_URLS
            and all(is_plain(url) and context.knows(url) for url in self.urls)
            and all(context.knows(word) and is_usual(word) for word in named)
        )

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the URLs, of other words that name a machine, and of the commands."""
        found = [host for url in self.urls for host in hosts_of(url)]
        found += map(host_of, [*self.addresses, *named_hosts(self.request.arguments)])
        reaching = (one for one in self.script.commands if kind_of(one) in REACHING)
        words = (word for command in reaching for word in command.words if not word.startswith("-"))
        found += [remote[1].lower() for word in words if (remote := _REMOTE.fullmatch(word))]
        return tuple(dict.fromkeys(host for host in found if host))

    @cached_property
    def script(self) -> Script:
        """What the command line runs."""
        return parsed(self.command) if self.command else Script()

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The arguments that are named like paths, and the words of commands that may point outside the workspace."""
        workspace = self.request.workspace
        named = (
            text
            for name, text in named_values(self.request.arguments, str)
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
        local_only = self.request.workspace is not None and Effect.NETWORK not in self.effects
        return local_only and self.script.plain and not (self.away or self.of_git)

    @cached_property
    def of_git(self) -> tuple[str, ...]:
        """Git's own files that the call would change, or may change."""
        if not self.effects & {Effect.WRITE, Effect.EXECUTE}:
            return ()
        changing = [one for one in self.script.commands if kind_of(one) != "reads"]
        if changing or self.script.writes:
            changing += [one for one in self.script.commands if one.name == "cd"]
        words = (part for one in changing for word in one.words for part in _parts(word))
        named = () if self.request.workspace is None else self.request.workspace.paths
        places = dict.fromkeys([*named, *words, *self.script.writes])
        return tuple(
            place for place in places if ".git" in place.casefold().split("/")
        )  # some file systems know no case

    @property
    def unreachable(self) -> str:
        """Why no tool of the workspace can do it, whoever allows it; empty if one can."""
        for path in () if self.request.workspace is None else self.request.workspace.paths:
            if path in self.away:
                return f"path escapes sandbox: it leads out of the workspace, to {path}"
            if path in self.of_git:
                return f"{path} is one of git's own files; use git's commands for what may be changed there"
        return ""

    @cached_property
    def leaving(self) -> tuple[str, ...]:
        """The paths in a command line that may point outside the workspace, and the files that it redirects to."""
        found = [word for word in self.words if word.startswith(("/", "~")) or ".." in word.split("/")]
        places = (path for path in dict.fromkeys([*found, *self.script.writes]) if path not in HARMLESS_TARGETS)
        workspace = self.request.workspace
        return tuple(places) if workspace is None else tuple(_relative(path, workspace.root) for path in places)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Every word of the commands, the paths in them, and the files that input is redirected from."""
        words = [word for command in self.script.commands for word in command.words]
        return tuple(dict.fromkeys([*words, *(part for word in words for part in _parts(word)), *self.script.reads]))

    @cached_property
    def text_length(self) -> int:
        """The number of characters that the model chose in the arguments."""
        return sent_length(self.request.arguments, self.request.names)

    @cached_property
    def free_text(self) -> int:
        """The same without the first addresses and names of files that the conversation knows."""
        if self.text_length > _LONGEST_READ:
            return self.text_length
        words = (word for _, text in named_values(self.request.arguments, str) for word in words_of(text))
        names = (word for word in words if _NAME.search(word) and "://" not in word)
        known = filter(self.request.context.knows, dict.fromkeys([*self.urls, *names]))
        return self.text_length - sum(map(len, islice(known, FREE_NAMES)))


def outside(path: str) -> bool:
    """Whether a path may lead out of the workspace, which is the working directory."""
    return path.startswith(("~", "/")) or "\\" in path or ".." in path.split("/")


def _relative(path: str, root: str) -> str:
    within = path == root or path.startswith(f"{root.rstrip('/')}/")
    return relpath(path, root) if within and not {"..", "."}.intersection(path.split("/")) else path


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
