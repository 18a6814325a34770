"""The name of a tool in rules, tables and traces, and the documented aliases that lead to it."""

from collections.abc import Mapping
from functools import lru_cache

ALIASES: Mapping[str, str] = {
    "web_search": "duckduckgo_web_search",
    "bash": "shell_run",
    "file_read": "fs_read",
    "file_write": "fs_write",
}


def own_name(name: str) -> str:
    """The one name of the tool that is called so."""
    return ALIASES.get(name, name)


@lru_cache(maxsize=1_000)
def names_of(tool: str) -> frozenset[str]:
    """The tool's name and its aliases: what a rule says of one of them holds for all."""
    own = own_name(tool)
    return frozenset({own, *(alias for alias, target in ALIASES.items() if target == own)})
