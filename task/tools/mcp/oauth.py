"""Sign users in to MCP servers outside DIAL Core, by OAuth as the servers describe it, and keep the tokens sealed.

Sources: the MCP specification, Authorization; RFC 6749, 7591, 7636, 8414, 8707, 9207, 9728.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

import httpx2
from cryptography.fernet import Fernet, InvalidToken
from mcp.client.auth import OAuthFlowError, PKCEParameters, utils
from mcp.client.auth.oauth2 import OAuthContext, check_registration_usable
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthMetadata, OAuthToken
from mcp.shared.auth_utils import check_resource_allowed, resource_url_from_server_url
from pydantic import AnyUrl, BaseModel, ValidationError

from task.errors import InvalidRequest, NotFound, ToolError
from task.permissions.hosts import is_internal
from task.permissions.taint import Origin
from task.store.access import StoreAccess
from task.tools.base import BaseTool, ToolSpec, object_schema
from task.tools.mcp.connection import bound, http_client
from task.tools.mcp.mcp_tool import SIGN_IN
from task.tools.models import Effect, ToolCallParams

logger = logging.getLogger(__name__)

FLOW_SECONDS = 600.0  # that the user has for signing in
LONGEST_SECONDS = 10**9  # of a token
EARLY_SECONDS = 30.0  # before its end a token is refreshed
MAX_BYTES = 2**18  # of metadata, of a registration, of tokens
SECONDS = 10.0  # for each request, and for a refresh by another process
PAUSE_SECONDS = 0.1
NOT_YOURS = "This sign-in is not one of yours, or it took longer than ten minutes. Start it again."
FAILED = "{} could not sign you in: {}. Try again, or tell an operator."


class _Refused(InvalidRequest):
    """The server does not accept what it was sent, or is not one to sign in to."""


class _Kept(BaseModel):
    """What is kept of one user at one server; `state` and `verifier` while the user signs in, until `until`."""

    client: OAuthClientInformationFull
    metadata: OAuthMetadata
    resource: str
    redirect: str
    state: str = ""
    verifier: str = ""
    until: float = 0.0
    tokens: OAuthToken | None = None
    expires: float | None = None


async def _to_public_hosts(own: str, request: httpx2.Request) -> None:
    """Let the request reach public addresses by HTTPS only, or the host of the operator's own server."""
    if (host := request.url.host) == own:
        return
    found = await asyncio.get_running_loop().getaddrinfo(host, 443)
    address = str(found[0][4][0])
    if request.url.scheme != "https" or is_internal(address):
        raise OAuthFlowError("its metadata lead to an address that is not a public one with https")
    # To the address that was checked: the name could lead elsewhere when it is looked up again.
    request.extensions = {**request.extensions, "sni_hostname": host}
    request.url = request.url.copy_with(host=address)  # the header `Host` is set already


async def _bound(response: httpx2.Response) -> None:
    bound(response, MAX_BYTES)


@dataclass(frozen=True, slots=True)
class UserSignIns:
    """The sign-ins of users at the `servers`, addresses by names; `secret` seals what the store keeps."""

    store: StoreAccess
    secret: bytes
    servers: Mapping[str, str]

    def tools(self) -> list[BaseTool]:
        """The tools that ask users to sign in, for doors that have a place where they do it."""
        return [SignInTool(server, self) for server in self.servers]

    async def start(self, owner: str, server: str, redirect: str) -> str:
        """The address at which the user signs in, which leads to `redirect` afterwards.

        Raises:
            InvalidRequest: there is no such server, or it cannot sign users in.
        """
        async with self._asking(server) as http:
            metadata, resource, scope = await _discovered(http, self.servers[server])
            asked = OAuthClientMetadata(
                redirect_uris=[AnyUrl(redirect)],
                client_name="DIAL general purpose agent",
                scope=scope,
                token_endpoint_auth_method="none",  # noqa: S106 - the name of a method
            )
            registration = utils.create_client_registration_request(metadata, asked, str(metadata.issuer))
            client = await utils.handle_registration_response(await http.send(registration))
            check_registration_usable(client)
        pkce, state = PKCEParameters.generate(), secrets.token_urlsafe(32)
        kept = _Kept(client=client, metadata=metadata, resource=resource, redirect=redirect)
        kept.state, kept.verifier, kept.until = state, pkce.code_verifier, self.store.now() + FLOW_SECONDS
        _, before = await self._read(owner, server)
        await self._write(owner, server, kept, before)
        parameters = {
            "response_type": "code",
            "client_id": client.client_id,
            "redirect_uri": redirect,
            "state": state,
            "code_challenge": pkce.code_challenge,
            "code_challenge_method": "S256",
            "resource": resource,
            **({"scope": scope} if scope else {}),
        }
        page = str(metadata.authorization_endpoint)
        return f"{page}{'&' if '?' in page else '?'}{urlencode(parameters)}"

    async def finish(self, owner: str, state: str, code: str, issuer: str | None = None) -> str:
        """The server at which the user has signed in, with the `code` that it gave.

        Raises:
            InvalidRequest: the `state` is not of a sign-in of this owner, the `issuer` another, or the server refuses.
        """
        for server in self.servers:
            kept, sealed = await self._read(owner, server)
            if kept is None or not kept.state or not hmac.compare_digest(kept.state.encode(), state.encode()):
                continue
            # Once: neither a second answer nor a failed one may use this sign-in again.
            used = kept.model_copy(update={"state": "", "verifier": ""})
            sealed = await self._write(owner, server, used, sealed)
            if sealed is None or kept.until < self.store.now():
                break
            async with self._asking(server) as http:
                utils.validate_authorization_response_iss(issuer, kept.metadata)
                if not code:
                    raise OAuthFlowError("the sign-in was refused")
                proof = {"code": code, "redirect_uri": kept.redirect, "code_verifier": kept.verifier}
                await self._granted(http, used, {"grant_type": "authorization_code", **proof})
            await self._write(owner, server, used, sealed)
            return server
        raise InvalidRequest(NOT_YOURS)

    async def token(self, owner: str, server: str) -> str | None:
        """A token that is valid for a while; None: the user has to sign in. One process refreshes it, others wait."""
        processes = (await self.store.get()).processes
        chore = "token " + sha256(f"{owner}\n{server}".encode()).hexdigest()
        for _ in range(round(SECONDS / PAUSE_SECONDS)):
            kept, sealed = await self._read(owner, server)
            if kept is None or kept.tokens is None:
                return None
            if kept.expires is None or kept.expires > self.store.now():
                return kept.tokens.access_token
            # Half of it counts, which has to be longer than the refresh: a refresh token that is sent twice ends all.
            if not await processes.first_to(chore, 3 * SECONDS):
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            refresh, kept.tokens = kept.tokens.refresh_token, None
            with suppress(_Refused):  # the user signs in again
                if refresh:
                    async with self._asking(server, SECONDS) as http:
                        await self._granted(http, kept, {"grant_type": "refresh_token", "refresh_token": refresh})
            await self._write(owner, server, kept, sealed)
        raise InvalidRequest(FAILED.format(server, "its token is not renewed yet"))

    async def forget(self, owner: str, server: str, token: str = "") -> None:
        """Delete what is kept; with a `token`, which the server refused, only if it is that one.

        Raises:
            NotFound: there is nothing to delete.
        """
        kept, _ = await self._read(owner, server)
        if token and (kept is None or kept.tokens is None or kept.tokens.access_token != token):
            return
        if not await (await self.store.get()).sealed.delete(owner, server) and not token:
            raise NotFound(f"You are not signed in to {server!r}.")

    @asynccontextmanager
    async def _asking(self, server: str, seconds: float = 2 * SECONDS) -> AsyncGenerator[httpx2.AsyncClient]:
        if server not in self.servers:
            raise InvalidRequest(f"there is no server {server!r} to sign in to")
        guard = partial(_to_public_hosts, urlsplit(self.servers[server]).hostname or "")
        hooks = {"request": [guard], "response": [_bound]}
        try:
            async with asyncio.timeout(seconds), http_client("https:", {}, hooks=hooks) as http:
                yield http
        except OAuthFlowError as error:  # the SDK's have what the server wrote, which may be a secret
            why = str(error) if type(error) is OAuthFlowError else "it refused the agent"
            raise _Refused(FAILED.format(server, why)) from None
        except (httpx2.HTTPError, OSError, ValueError) as error:  # whose text may have the tokens
            raise InvalidRequest(FAILED.format(server, f"no usable answer, {type(error).__name__}")) from None

    async def _granted(self, http: httpx2.AsyncClient, kept: _Kept, grant: dict[str, str]) -> None:
        context = OAuthContext("", *cast("Any", (None,) * 4), client_info=kept.client)
        data = {**grant, "client_id": kept.client.client_id, "resource": kept.resource}
        data, headers = context.prepare_token_auth(data, {})
        response = await http.post(str(kept.metadata.token_endpoint), data=data, headers=headers)
        if response.is_server_error:
            response.raise_for_status()
        if response.status_code not in (200, 201):
            raise OAuthFlowError(f"it answered status {response.status_code} in place of a token")
        tokens = OAuthToken.model_validate_json(response.content)
        tokens.refresh_token = tokens.refresh_token or grant.get("refresh_token")
        kept.tokens = tokens
        valid = None if tokens.expires_in is None else min(tokens.expires_in, LONGEST_SECONDS)
        kept.expires = None if valid is None else self.store.now() + max(valid - EARLY_SECONDS, valid / 2)

    def _seal(self, owner: str, server: str) -> Fernet:
        whose = f"dial-agent: tokens\n{owner}\n{server}\n{self.servers.get(server)}"  # another server gets none
        key = hmac.new(self.secret, whose.encode(), sha256).digest()
        return Fernet(base64.urlsafe_b64encode(key))

    async def _read(self, owner: str, server: str) -> tuple[_Kept | None, str | None]:
        """What is kept, None also where another secret has sealed it, and how it is stored."""
        sealed = await (await self.store.get()).sealed.get(owner, server)
        if sealed is None:
            return None, None
        try:
            return _Kept.model_validate_json(self._seal(owner, server).decrypt(sealed)), sealed
        except (InvalidToken, ValidationError):
            logger.warning("a sign-in at %s cannot be read with this secret; the user has to sign in again", server)
            return None, sealed

    async def _write(self, owner: str, server: str, kept: _Kept, before: str | None) -> str | None:
        """How it is stored now; None where it has changed since `before`."""
        sealed = self._seal(owner, server).encrypt(kept.model_dump_json(exclude_none=True).encode()).decode()
        done = await (await self.store.get()).sealed.put(owner, server, sealed, before)
        return sealed if done else None


async def _discovered(http: httpx2.AsyncClient, url: str) -> tuple[OAuthMetadata, str, str | None]:
    """What the server says of its authorization server, of itself as a resource, and of scopes."""
    protected, own = None, resource_url_from_server_url(url)
    challenge = await http.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    named = utils.extract_resource_metadata_from_www_auth(challenge)
    for address in utils.build_protected_resource_metadata_discovery_urls(named, url):
        answer = await http.send(utils.create_oauth_metadata_request(address))
        if (protected := await utils.handle_protected_resource_response(answer)) is not None:
            break
    resource = str(protected.resource) if protected is not None else own
    if not check_resource_allowed(requested_resource=own, configured_resource=resource):
        raise OAuthFlowError("its metadata are those of another server")
    issuer = str(protected.authorization_servers[0]) if protected is not None else None
    for address in utils.build_oauth_authorization_server_metadata_discovery_urls(issuer, url):
        answer = await http.send(utils.create_oauth_metadata_request(address))
        _, found = await utils.handle_auth_metadata_response(answer)
        if found is None:
            continue
        if not utils.issuers_match(str(found.issuer), issuer or "{0.scheme}://{0.netloc}".format(urlsplit(url))):
            raise OAuthFlowError("its metadata name another issuer")
        page = found.authorization_endpoint  # which the user's browser opens
        if page.scheme != "https" and page.host != urlsplit(url).hostname:
            raise OAuthFlowError("its page is not one with https")
        if "S256" not in (found.code_challenge_methods_supported or ()):
            raise OAuthFlowError("it does not support PKCE")
        scope = utils.get_client_metadata_scopes(
            utils.extract_scope_from_www_auth(challenge), protected, found, ["authorization_code", "refresh_token"]
        )
        return found, resource, scope
    raise OAuthFlowError("it does not describe how to sign in")


class SignInTool(BaseTool):
    """Asks the user to sign in to a server outside Core: its call waits for the user, who signs in and approves it."""

    def __init__(self, server: str, sign_ins: UserSignIns) -> None:
        self._server, self._sign_ins = server, sign_ins
        described = f"Ask the user to sign in to {server}. Call it if tools of {server} are missing or refuse access."
        parameters = object_schema("server", server={"type": "string", "enum": [server]})
        # No rule of the product's allows what writes, so that the user is asked.
        effects = frozenset({Effect.WRITE, Effect.NETWORK})
        self.spec = ToolSpec(f"{SIGN_IN}{server}", described, parameters, effects, Origin.OWN)

    async def _execute(self, tool_call_params: ToolCallParams) -> str:
        owner = await tool_call_params.known_caller.principal()
        if await self._sign_ins.token(owner, self._server) is None:
            raise ToolError(f"The user has not signed in to {self._server}. Tell the user, and answer without it.")
        return f"The user is signed in to {self._server}. Its tools can be called now, or in the next turn."
