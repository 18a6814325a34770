"""Start a real local Core on a free loopback port."""

import base64
import json
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from task.local.core.access import Access, Principal
from task.local.core.app import create_app, runner_options
from task.local.core.core import CoreSettings
from tests.support import core_more

API_KEY = "installation-key-of-the-tests"


@dataclass(frozen=True, slots=True)
class RunningCore:
    """A local Core at `url` (no slash at the end); `keys` are its project keys, `api_key` the installation's.

    `app` is its application, None for a Core outside this process.
    """

    url: str
    api_key: str
    keys: tuple[str, ...]
    settings: CoreSettings
    app: web.Application | None = None

    def share(self, url: str, owner: str, access: Access = "READ") -> None:
        """Share a file or folder (its URL ends in `/`) with the owner of a bucket, such as `Keys/Two/`."""
        assert self.app is not None
        core_more.share(self.app, owner, url, access)

    def skill(self, url: str, files: Mapping[str, bytes], *owners: str) -> core_more.StoredSkill:
        """Store a skill that these owners of buckets may read."""
        assert self.app is not None
        self.app[core_more.SKILLS][url] = stored = core_more.StoredSkill(dict(files), set(owners))
        return stored

    def headers(self, key: str | None = None) -> dict[str, str]:
        """Credentials of a project key, by default the first one of the configuration."""
        return {"Api-Key": key or (self.keys or (self.api_key,))[0]}


@asynccontextmanager
async def local_core(
    config: Mapping[str, Any], tmp_path: Path, *, port: int = 0, routes: Iterable[web.RouteDef] = (), **switches: Any
) -> AsyncGenerator[RunningCore]:
    """Local Core with a configuration document, and what `core_more` and `routes` add.

    Its files are kept in `tmp_path/core`. `switches` are fields of `CoreSettings`, such as `version=25` for Core
    0.25; by default the key is `API_KEY` and unsigned tokens count.
    """
    given: dict[str, Any] = {"api_key": API_KEY, "user_of": unsigned_user} | switches
    settings = CoreSettings(data_folder=tmp_path / "core", config=config, port=0, **given)
    app = create_app(settings)
    core_more.add_routes(app, settings)
    app.add_routes(routes)
    async with served(app, settings, port) as url:
        keys = tuple(config.get("keys", {}))
        yield RunningCore(url, settings.api_key, keys, settings, app)


def token_of(user: str, **more: Any) -> str:
    """A token as local Core takes it in tests: unsigned."""
    head, claims = ({"alg": "none"}, {"sub": user, **more})
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in (head, claims)]
    return ".".join([*parts, ""])


def unsigned_user(token: str) -> Principal | None:
    """The user of an unsigned token (`{"alg": "none"}`), by its claims `sub` and `roles`; None for other values."""
    header, _, rest = token.partition(".")
    payload, _, signature = rest.partition(".")
    if signature or not rest.endswith(".") or _decoded(header) != {"alg": "none"}:
        return None
    claims = _decoded(payload)
    return Principal(f"Users/{claims['sub']}/", tuple(claims.get("roles", ())))


def _decoded(part: str) -> Any:
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


@asynccontextmanager
async def served(
    app: web.Application, settings: CoreSettings | None = None, port: int = 0, **options: Any
) -> AsyncGenerator[str]:
    """The address at which an aiohttp application is served on the loopback, without a `port` on a free one.

    `options` of its runner replace those of local Core.
    """
    runner = web.AppRunner(app, **runner_options(settings or CoreSettings(Path())) | options)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port, backlog=2048)  # as uvicorn has it: hundreds connect at once
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
