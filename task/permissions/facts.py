"""What a call would touch, read from its parsed arguments: URLs, hosts, paths, commands."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import PurePosixPath

from task.permissions.decisions import CallRequest
from task.permissions.effects import Effect
from task.permissions.urls import host_of, is_dial_file, named_strings, urls_in

_PATHS = re.compile(r"path|file|dir|folder|cwd|root|source|dest|target", re.IGNORECASE)
_COMMANDS = frozenset({"command", "cmd", "script", "shell", "bash", "command_line"})
_LONGEST_PATH = 4_096


class CallFacts:
    """The facts of one call, each computed when somebody first asks for it."""

    def __init__(self, request: CallRequest) -> None:
        self.request = request
        self.tool = request.call.name
        self.effects = request.effects

    @cached_property
    def urls(self) -> tuple[str, ...]:
        """The URLs the arguments name; DIAL's own files are none."""
        return tuple(url for url in urls_in(self.request.arguments) if not is_dial_file(url))

    @cached_property
    def urls_known(self) -> bool:
        """Whether every URL stands in the user's messages or in a result; so it does where there is none."""
        return all(map(self.request.context.knows, self.urls))

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(host for url in self.urls if (host := host_of(url))))

    @cached_property
    def command(self) -> str:
        """The command line in the arguments of a tool that executes; empty where there is none."""
        if Effect.EXECUTE not in self.effects:
            return ""
        texts = (text for name, text in named_strings(self.request.arguments) if name.lower() in _COMMANDS)
        return "\n".join(texts)

    @cached_property
    def paths(self) -> tuple[str, ...]:
        return tuple(
            text
            for name, text in named_strings(self.request.arguments)
            if len(text) <= _LONGEST_PATH and _PATHS.search(name) and "://" not in text and not is_dial_file(text)
        )

    @cached_property
    def text_length(self) -> int:
        """Characters of all texts in the arguments."""
        return sum(len(text) for _, text in named_strings(self.request.arguments))


def outside(path: str, workspace: str) -> bool:
    """Whether a path leaves the workspace; without one every absolute path does."""
    if path.startswith("~") or "\\" in path:
        return True
    parts = PurePosixPath(path)
    if ".." in parts.parts:
        return True
    return parts.is_absolute() and not (workspace and parts.is_relative_to(workspace))
