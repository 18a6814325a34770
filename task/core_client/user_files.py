"""The files that one key may list and change: paths and their URLs, pages of folders, guarded writes, kept copies."""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from secrets import token_hex
from time import time_ns
from typing import Any, Self
from urllib.parse import quote, unquote, urlencode

from task.core_client.files import DialFiles, FileInfo, folder_of, shortened, unquoted
from task.errors import ToolError

KEPT = ".undo/"  # in the user's own folder: what was replaced or deleted, the oldest first
KEPT_FILES, KEPT_BYTES = 20, 100 * 2**20
PAGE_FILES, PAGES = 1_000, 20
_UNESCAPED = "-._~!$'()*,;&=@:+"  # as Core writes its URLs
_UNFIT = re.compile(r"\s*|\.\.|.*[\x00-\x1f{}/\ud800-\udfff].*", re.DOTALL)
_URL = re.compile(r"(?:metadata/)?files/|[a-z]+://")


@dataclass(frozen=True, slots=True)
class UserFiles:
    """The files of one key in `files`; paths count from `home`, the URL of a folder. URLs of folders end in a slash.

    Raises:
        ToolError: by every method that fails; the text says to the model what to do next.
    """

    files: DialFiles
    key: str
    home: str

    @classmethod
    async def of(cls, files: DialFiles, key: str) -> Self:
        """With the key's own folder: the application's in the user's bucket, or that bucket."""
        bucket = await files.get_json("bucket", key, "the user's bucket")
        names = f"{bucket.get('appdata') or bucket['bucket']}/{folder_of(key)}".split("/")
        return cls(files, key, "/".join(["files", *(quote(unquote(name), safe=_UNESCAPED) for name in names)]))

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
        url = start + "/".join(quote(name, safe=_UNESCAPED) for name in names) + ("/" if folder and names else "")
        if f"{url}/".startswith(self.home + KEPT):
            raise ToolError(f"{KEPT} holds what was replaced; files_undo brings it back")
        if is_url and changed and url.startswith(self.home):
            raise ToolError(f"Name this file by its path: {self.path(url)!r}")
        return url

    def path(self, url: str) -> str:
        """How the model names a file or folder: by its path, or by its URL where it is not below `home`."""
        if not url.startswith(self.home):
            return url
        path = unquote(url.removeprefix(self.home)) or "."
        return f"./{path}" if _URL.match(path) else path

    async def listing(self, folder: str, most: int, *, recursive: bool = False) -> tuple[list[FileInfo], bool]:
        """Up to `most` of what is in a folder, or of all files below it, and whether there are more; without ETags."""
        found, token = list[FileInfo](), ""
        missing = {"items": []} if folder in (self.home, self.home + KEPT) else None  # no file is in it yet
        for _ in range(PAGES):
            query = {"limit": PAGE_FILES, "recursive": str(recursive).lower(), **({"token": token} if token else {})}
            where = f"metadata/{folder}?{urlencode(query)}"
            page = await self.files.get_json(where, self.key, shortened(self.path(folder)), missing)
            for info in map(_described, page.get("items") or ()):
                kept = info.url.startswith(self.home + KEPT) and not folder.endswith(KEPT)
                if unquote(info.url).startswith(unquote(folder)) and not kept:
                    found.append(info)
            token = page.get("nextToken") or ""
            if not token or len(found) > most:
                break
        return found[:most], bool(token) or len(found) > most

    async def find(self, url: str) -> FileInfo | None:
        """The file as it is now; None where there is none."""
        found = await self.files.get_json(f"metadata/{url}", self.key, shortened(self.path(url)), {})
        return _described(found) if found else None

    async def write(self, url: str, content: bytes, kind: str, etag: str | None) -> str | None:
        """Replace the version of a file that has this ETag, or make it if None is given; returns the new ETag."""
        async with self.files.client(self.key, shortened(self.path(url))) as client:
            file = unquote(url.rpartition("/")[2]), content, kind
            return unquoted((await client.files.upload(url, file, etag, None if etag else "*")).etag)

    async def move(self, source: str, destination: str) -> None:
        """Move a file to where there is none."""
        if await self.find(destination) is not None:
            raise ToolError(f"There is a file {shortened(self.path(destination))} already. Choose another name.")
        async with self.files.client(self.key, shortened(self.path(source))) as client:
            await client.files.move_to(source, destination)

    async def delete(self, url: str, etag: str | None) -> None:
        """Delete a file, of this ETag if one is given."""
        async with self.files.client(self.key, shortened(self.path(url))) as client:
            await client.files.delete(url, etag)

    async def place_to_keep(self, size: int) -> str:
        """The URL for a copy of so many bytes; the oldest copies that leave no room for it are deleted."""
        kept, _ = await self.listing(self.home + KEPT, PAGE_FILES)
        for number, info in enumerate(sorted(kept, key=lambda info: info.url, reverse=True), 1):
            size += info.size or 0
            if number >= KEPT_FILES or size > KEPT_BYTES:
                with suppress(ToolError):  # another conversation was faster
                    await self.delete(info.url, None)
        return f"{self.home}{KEPT}{time_ns():x}-{token_hex(4)}"


def _described(item: Mapping[str, Any]) -> FileInfo:
    size, kind = item.get("contentLength"), item.get("contentType")
    return FileInfo(item["url"], item.get("name") or "", size, kind, unquoted(item.get("etag")))
