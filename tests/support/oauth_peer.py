"""An MCP server that wants users to sign in, and its authorization server, both by the rules of the specifications.

Sources: RFC 6749, 7591, 7636 (S256), 8414, 8707, 9207, 9728. Refresh tokens rotate: who sends one again loses all.
"""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import aiohttp
from aiohttp import web
from yarl import URL

from tests.support.core import served
from tests.support.mcp_wire import VERSION, listed

Change = Callable[[dict[str, Any]], dict[str, Any] | bytes]


def _same(document: dict[str, Any]) -> dict[str, Any]:
    return document


@dataclass
class OAuthPeer:
    """`url` is the MCP server's, which has the tool `read_ticket`. `resource` and `metadata` change its documents.

    `seconds` is how long tokens are valid; `calls` are the users' tokens with which the tool was called. A refresh
    that was `asked` for waits until it is `open`, and fails with another `status` than 200.
    """

    seconds: int = 3600
    resource: Change = _same
    metadata: Change = _same
    url: str = ""
    issuer: str = ""
    clients: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    codes: dict[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    access: set[str] = field(default_factory=set[str])
    refresh: dict[str, str] = field(default_factory=dict[str, str])
    refreshed: int = 0
    calls: list[str] = field(default_factory=list[str])
    status: int = 200
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    def expire(self) -> None:
        """Let the tokens that were given be invalid, as they are after a revocation."""
        self.access.clear()

    async def mcp(self, request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.access:
            where = (
                f'Bearer resource_metadata="{self.url.removesuffix("/mcp")}/.well-known/oauth-protected-resource/mcp"'
            )
            return web.json_response({"error": "invalid_token"}, status=401, headers={"WWW-Authenticate": where})
        asked = await request.json()
        if asked["method"] == "tools/call":
            self.calls.append(token)
        results: dict[str, Any] = {
            "server/discover": {"supportedVersions": [VERSION], "capabilities": {"tools": {}}},
            "tools/list": listed("read_ticket", annotations={"readOnlyHint": True}),
            "tools/call": {"content": [{"type": "text", "text": "ticket 7: the printer"}]},
        }
        result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **results[asked["method"]]}
        return web.json_response({"jsonrpc": "2.0", "id": asked["id"], "result": result})

    async def describe_resource(self, _: web.Request) -> web.Response:
        return _sent(self.resource({"resource": self.url, "authorization_servers": [self.issuer]}))

    async def describe_issuer(self, _: web.Request) -> web.Response:
        places = {f"{name}_endpoint": f"{self.issuer}/{name}" for name in ("authorization", "token", "registration")}
        more = {"code_challenge_methods_supported": ["S256"], "authorization_response_iss_parameter_supported": True}
        return _sent(self.metadata({"issuer": self.issuer, "response_types_supported": ["code"], **places, **more}))

    async def register(self, request: web.Request) -> web.Response:
        client = {**await request.json(), "client_id": secrets.token_hex(8)}
        self.clients[client["client_id"]] = client
        return web.json_response(client, status=201)

    async def authorize(self, request: web.Request) -> web.Response:
        """The user agrees at once."""
        asked = request.query
        client = self.clients.get(asked["client_id"], {})
        sound = asked["redirect_uri"] in client.get("redirect_uris", ()) and asked["resource"] == self.url
        if not sound or (asked["code_challenge_method"], asked["response_type"]) != ("S256", "code"):
            return web.Response(status=400)
        self.codes[code := secrets.token_hex(8)] = asked
        back = urlencode({"code": code, "state": asked["state"], "iss": self.issuer})
        return web.Response(status=302, headers={"Location": f"{asked['redirect_uri']}?{back}"})

    async def token(self, request: web.Request) -> web.Response:
        asked = await request.post()
        if asked["grant_type"] == "refresh_token":
            self.asked.set()
            await self.open.wait()
            if self.status != 200:
                return web.Response(status=self.status)
            owner = self.refresh.pop(str(asked["refresh_token"]), "")
            self.refreshed += 1
            if owner != asked["client_id"]:
                self.access.clear()
                self.refresh.clear()
                return web.json_response({"error": "invalid_grant"}, status=400)
        else:
            given = self.codes.pop(str(asked["code"]), {})
            digest = hashlib.sha256(str(asked["code_verifier"]).encode()).digest()
            proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            claimed = (proof, asked["redirect_uri"], asked["client_id"], asked["resource"])
            if claimed != tuple(given.get(key) for key in ("code_challenge", "redirect_uri", "client_id", "resource")):
                return web.json_response({"error": "invalid_grant"}, status=400)
        access, again = f"at-{secrets.token_hex(8)}", f"rt-{secrets.token_hex(8)}"
        self.access.add(access)
        self.refresh[again] = str(asked["client_id"])
        tokens = {"access_token": access, "token_type": "Bearer", "expires_in": self.seconds, "refresh_token": again}
        return web.json_response(tokens)


def _sent(document: dict[str, Any] | bytes) -> web.Response:
    return web.json_response(document) if isinstance(document, dict) else web.Response(body=document)


@asynccontextmanager
async def oauth_peer(**options: Any) -> AsyncGenerator[OAuthPeer]:
    """Both servers, on two ports of this machine; `options` are the fields of the peer."""
    peer, resource, issuer = OAuthPeer(**options), web.Application(), web.Application()
    peer.open.set()
    resource.router.add_post("/mcp", peer.mcp)
    resource.router.add_get("/.well-known/oauth-protected-resource/mcp", peer.describe_resource)
    issuer.router.add_get("/.well-known/oauth-authorization-server", peer.describe_issuer)
    issuer.router.add_post("/registration", peer.register)
    issuer.router.add_get("/authorization", peer.authorize)
    issuer.router.add_post("/token", peer.token)
    async with served(resource, shutdown_timeout=0.2) as url, served(issuer, shutdown_timeout=0.2) as peer.issuer:
        peer.url = f"{url}/mcp"
        yield peer


async def agree(address: str) -> dict[str, str]:
    """What the browser brings back from the sign-in page at the address, after the user has agreed."""
    async with aiohttp.ClientSession() as browser, browser.get(address, allow_redirects=False) as answer:
        assert answer.status == 302, answer.status
        location = answer.headers["Location"]
    return dict(URL(location).query)
