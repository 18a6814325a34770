"""What only an administrator may do."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from task.local_core.config_source import ConfigSource
from task.local_core.identity import IDENTITY
from task.local_core.refusal import Refusal, json_answer

ADMIN_ROLE = "admin"


@dataclass(frozen=True, slots=True)
class Administration:
    """The reload route; an application never acts as an administrator, whoever called it."""

    config: ConfigSource

    def register(self, app: web.Application) -> None:
        app.router.add_post("/v1/ops/config/reload", self.reload)

    async def reload(self, request: web.Request) -> web.Response:
        """The configuration as it now is, without callers' keys and upstreams' secrets."""
        identity = request[IDENTITY]
        if identity.key is not None or ADMIN_ROLE not in identity.roles:
            raise Refusal(403)
        config = self.config.current()
        hidden = {"keys": True, "models": {"__all__": {"upstreams": True}}, "routes": True}
        return json_answer(request, config.model_dump(mode="json", by_alias=False, exclude=hidden))
