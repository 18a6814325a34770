"""A project's folder with what must not be touched around it, offered as a workspace."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp

from tests.support.core import local_core

KEY = "KEY-OF-THE-NEIGHBOUR"
KEYS = {"key-one": {"project": "ONE", "role": "default"}, "key-two": {"project": "TWO", "role": "default"}}


@dataclass(frozen=True, slots=True)
class Place:
    """The workspace `path`, beside a neighbour's folder; `link` in it leads there."""

    path: Path

    @classmethod
    def made(cls, folder: Path) -> Self:
        work, neighbour = folder / "work", folder / "neighbour"
        for name in (work / ".git" / "hooks", neighbour):
            name.mkdir(parents=True)
        (work / "README.md").write_text("A shop.\n")
        (work / ".git" / "config").write_text("[core]\n")
        (work / "link").symlink_to(neighbour)
        (neighbour / "key").write_text(KEY)
        return cls(work)

    def offered_to(self, *owners: str, apply: bool = False) -> dict[str, Any]:
        """The settings that offer it."""
        return {"workspaces": [{"path": str(self.path), "owners": list(owners)}], "apply": apply}

    def files(self, *, inside: bool) -> dict[str, bytes]:
        """The files that no tool may change, git's own and those beside the workspace; and those `inside` it."""
        folders = [self.path.parent / "neighbour", self.path if inside else self.path / ".git"]
        found = (file for folder in folders for file in folder.rglob("*") if file.is_file() and not file.is_symlink())
        return {str(file.relative_to(self.path.parent)): file.read_bytes() for file in found}

    def changed(self, before: Mapping[str, bytes], *, inside: bool) -> list[str]:
        """The files that are new or not as they were."""
        now = self.files(inside=inside)
        return [name for name, content in now.items() if before.get(name) != content]


async def bucket_of(key: str, tmp_path: Path) -> str:
    """The bucket that local Core in this folder gives to the owner of a key of `tests.support.product`."""
    async with (
        local_core({"keys": KEYS}, tmp_path) as core,
        aiohttp.ClientSession() as session,
        session.get(f"{core.url}/v1/bucket", headers={"Api-Key": key}) as response,
    ):
        return (await response.json())["bucket"]
