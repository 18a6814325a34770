"""A plain HTTP client for Core's files that returns every answer as it is, errors too."""

import io
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

from aiohttp import ClientSession, ClientTimeout, FormData
from yarl import URL

from tests.support.replies import Reply


@dataclass(frozen=True, slots=True)
class CoreFiles:
    """One caller of Core. Paths are sent exactly as they are given, without any normalisation.

    A path is relative to the folder `home` of the caller's bucket (ends in `/`; empty: the bucket's root), or it is a
    whole `files/{bucket}/...`.
    """

    base_url: str
    session: ClientSession
    bucket: str
    home: str

    @classmethod
    @asynccontextmanager
    async def of(cls, base_url: str, api_key: str, home: str = "") -> AsyncGenerator[Self]:
        timeout = ClientTimeout(total=10)
        async with ClientSession(headers={"Api-Key": api_key}, timeout=timeout) as session:
            async with session.get(f"{base_url}/v1/bucket") as answer:
                bucket = (await answer.json())["bucket"]
            yield cls(base_url, session, bucket, home)

    async def call(self, method: str, path: str, **options: Any) -> Reply:
        url = URL(f"{self.base_url}{path}", encoded=True)
        async with self.session.request(method, url, **options) as answer:
            return Reply(answer.status, answer.headers, await answer.read())

    async def put(
        self, path: str, content: bytes = b"x", *, field: str = "file", type: str | None = "text/plain", **headers: str
    ) -> Reply:
        """Upload; headers in Python's spelling (`if_match`)."""
        form = FormData()
        form.add_field(field, io.BytesIO(content), filename="upload", content_type=type)
        return await self.call("PUT", self.file(path), data=form, headers=_spelled(headers))

    async def get(self, path: str, **headers: str) -> Reply:
        return await self.call("GET", self.file(path), headers=_spelled(headers))

    async def delete(self, path: str, **headers: str) -> Reply:
        return await self.call("DELETE", self.file(path), headers=_spelled(headers))

    async def metadata(self, path: str, query: str = "") -> Reply:
        return await self.call("GET", f"/v1/metadata/{self.url(path)}{query and '?' + query}")

    async def move(self, source: str, destination: str, *, overwrite: bool = False, call: str = "move") -> Reply:
        body = {"sourceUrl": self.url(source), "destinationUrl": self.url(destination), "overwrite": overwrite}
        return await self.call("POST", f"/v1/ops/resource/{call}", json=body)

    def url(self, path: str) -> str:
        return path if path.startswith("files/") else f"files/{self.bucket}/{self.home}{path}"

    def file(self, path: str) -> str:
        return f"/v1/{self.url(path)}"


def new_home() -> str:
    """A new folder, so that tests do not see each other's files."""
    return f"check-{uuid4().hex}/"


def _spelled(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
