"""The files that one key may list and change: paths and their URLs, pages of folders, guarded writes, kept copies."""

import re
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from time import time_ns
from typing import Self
from urllib.parse import unquote

from task.core_client.files import DialFiles, FileInfo, canonical, encoded, folder_of, shortened
from task.errors import ToolError

KEPT = ".undo/"  # in the user's own folder: what was replaced or deleted, the oldest first
MEMORY = ".memory"  # of several doors, also elsewhere in the bucket
RESERVED = (".undo", "approvals", MEMORY)  # what the product itself keeps there
KEPT_FILES = 20
PAGE_FILES, PAGES = 1_000, 20
_UNFIT = re.compile(r"\s*|\.\.|.*[\x00-\x1f{}/\ud800-\udfff].*", re.DOTALL)
_URL = re.compile(r"(?:metadata/)?files/|[a-z]+://")


@dataclass(frozen=True, slots=True)
class UserFiles:
    """The files of one key in `files`; paths count from `home`, the URL of a folder. URLs of folders end in a slash.

    `common` is the application's own bucket: its key opens it, but all users of the application would share it.

    Raises:
        ToolError: by every method that fails; the text says to the model what to do next.
    """

    files: DialFiles
    key: str
    home: str
    common: str = "-"

    @classmethod
    async def of(cls, files: DialFiles, key: str) -> Self:
        """With the key's own folder: the application's in the user's bucket, or that bucket."""
        home = await files.get_json("bucket", key, "the user's bucket")
        appdata, bucket = home.get("appdata"), home.get("bucket")
        own = canonical(f"files/{appdata or bucket}/{folder_of(key)}")
        return cls(files, key, own, f"files/{bucket}/" if appdata else "-")

    def url(self, path: str, *, folder: bool = False, changed: bool = False) -> str:
        """The canonical URL of a path below `home`, or of another file that is named by its URL.

        A file below `home` that is to be `changed` has to be named by its path: a rule about paths must see it.
        """
        if is_url := _URL.match(path) is not None:
            relative = self.files.check(path.removeprefix("metadata/").removesuffix("/"), self.key)
            start, names = "files/", [unquote(name) for name in relative.split("/")[1:]]
        else:
            start, names = self.home, [name for name in path.removesuffix("/").split("/") if name != "."]
        if any(_UNFIT.fullmatch(name) for name in names) or not (names or folder):
            raise ToolError(f"{shortened(path)} is not a path: names are not blank, not '..', and none begins at '/'")
        url = start + "/".join(map(encoded, names)) + ("/" if folder and names else "")
        if self._is_reserved(url) or f"{url}/".startswith(self.common):
            raise ToolError(f"{shortened(path)} is not the user's, but kept for other purposes. Leave it alone.")
        if is_url and changed and url.startswith(self.home):
            raise ToolError(f"Name this file by its path: {self.path(url)!r}")
        return url

    def path(self, url: str) -> str:
        """How the model names a file or folder: by its path, or by its URL where it is not below `home`."""
        if not url.startswith(self.home):
            return url
        path = unquote(url.removeprefix(self.home)) or "."
        return f"./{path}" if _URL.match(path) else path

    def _is_reserved(self, url: str) -> bool:
        return MEMORY in url.split("/") or url.removeprefix(self.home).split("/")[0] in RESERVED

    async def listing(self, folder: str, most: int, *, recursive: bool = False) -> tuple[list[FileInfo], bool]:
        """Up to `most` of what is in a folder, or of all files below it, and whether there are more; without ETags."""
        found, token = list[FileInfo](), ""
        missing = {"items": []} if folder in (self.home, self.home + KEPT) else None  # no file is in it yet
        for _ in range(PAGES):
            query = {"limit": str(PAGE_FILES), "recursive": str(recursive).lower(), "token": token}
            page = await self.files.get_json(f"metadata/{folder}", self.key, shortened(folder), missing, **query)
            for info in map(FileInfo.of, page.get("items") or ()):
                hidden = self._is_reserved(info.url) and not folder.endswith(KEPT)
                if unquote(info.url).startswith(unquote(folder)) and not hidden:
                    found.append(info)
            token = page.get("nextToken") or ""
            if not token or len(found) > most:
                break
        return found[:most], bool(token) or len(found) > most

    async def find(self, url: str) -> FileInfo | None:
        """The file as it is now; None where there is none."""
        found = await self.files.get_json(f"metadata/{url}", self.key, shortened(self.path(url)), {})
        return FileInfo.of(found) if found else None

    async def write(self, url: str, content: bytes, kind: str, etag: str | None) -> str | None:
        """Replace the version of a file that has this ETag, or make it if None is given; returns the new ETag."""
        return (await self.files.put(url, content, kind, self.key, shortened(self.path(url)), etag)).etag

    async def move(self, source: str, destination: str) -> None:
        """Move a file to where there is none."""
        subject, body = shortened(self.path(source)), {"sourceUrl": source, "destinationUrl": destination}
        if await self.find(destination) is not None:
            raise ToolError(f"There is a file {shortened(self.path(destination))} already. Choose another name.")
        async with self.files.request("POST", "ops/resource/move", self.key, subject, json=body):
            return

    async def delete(self, url: str, etag: str | None) -> None:
        """Delete a file, of this ETag if one is given."""
        match = {"If-Match": etag} if etag else {}
        async with self.files.request("DELETE", url, self.key, shortened(self.path(url)), headers=match):
            return

    async def place_to_keep(self) -> str:
        """The URL for what is to be kept; the oldest of `KEPT_FILES` makes room for it."""
        kept, _ = await self.listing(self.home + KEPT, PAGE_FILES)
        for url in sorted((info.url for info in kept), reverse=True)[KEPT_FILES - 1 :]:
            with suppress(ToolError):  # another conversation was faster
                await self.delete(url, None)
        return f"{self.home}{KEPT}{time_ns():x}-{token_hex(4)}"
