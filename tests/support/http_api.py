"""The HTTP front door on a free loopback port before a scripted model, and a caller of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from task.settings import Settings
from task.store.access import StoreOptions
from task.store.store import open_store
from tests.support.agent import running_agent
from tests.support.replies import Reply
from tests.support.upstream import Item, Upstream, openai_upstream

MODEL = "test-model"
NOWHERE = "http://127.0.0.1:9"


@dataclass(frozen=True, slots=True)
class Api:
    url: str
    upstream: Upstream
    session: aiohttp.ClientSession
    headers: Mapping[str, str] = field(default_factory=dict[str, str])

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> Reply:
        given = {**self.headers, **options.pop("headers", {})}
        if body is not None:
            options["json"] = body
        async with self.session.request(method, f"{self.url}{path}", headers=given, **options) as response:
            return Reply(response.status, dict(response.headers), await response.read())

    async def get(self, path: str, **options: Any) -> Reply:
        return await self.call("GET", path, **options)

    async def post(self, path: str, body: Any = None, **options: Any) -> Reply:
        return await self.call("POST", path, body, **options)

    async def complete(self, text: str, **body: Any) -> Reply:
        return await self.post("/v1/chat/completions", {"messages": [said(text)], **body})

    async def events(self, run_id: str, **options: Any) -> list[dict[str, Any]]:
        """The run's events to its end."""
        return (await self.get(f"/runs/{run_id}/events", **options)).chunks

    def with_key(self, key: str) -> Api:
        return Api(self.url, self.upstream, self.session, {"Authorization": f"Bearer {key}"})


async def uploaded(api: Api, name: str, content: bytes, kind: str) -> dict[str, Any]:
    """A file of this caller, as `/v1/files` describes it."""
    form = aiohttp.FormData()
    form.add_field("file", content, filename=name, content_type=kind)
    return (await api.call("POST", "/v1/files", data=form)).json


def said(text: str, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": text}


@asynccontextmanager
async def http_api(*items: Item, tmp_path: Path, then: Item | None = None, **settings: Any) -> AsyncGenerator[Api]:
    """Everything started; `items` are the model's answers, `settings` the agent's."""
    async with openai_upstream(*items, then=then) as upstream:
        values = {
            "backend": "openai", "openai_base_url": upstream.url, "openai_api_key": "sk-test",
            "deployment_name": MODEL, "data_dir": tmp_path / "agent", "dial_endpoint": NOWHERE,
        }  # fmt: skip
        async with (
            running_agent(Settings.model_validate({**values, **settings})) as url,
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as session,
        ):
            yield Api(url, upstream, session)


async def key_of(owner: str, tmp_path: Path, *, operator: bool = False) -> str:
    """A new key in the store of the agent whose data are in `tmp_path/agent`."""
    (tmp_path / "agent").mkdir(exist_ok=True)
    store = await open_store(StoreOptions(f"sqlite:///{tmp_path / 'agent' / 'store.db'}", chores=False))
    try:
        return (await store.keys.create(owner, operator=operator))[1]
    finally:
        await store.close()
