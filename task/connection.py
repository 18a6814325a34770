"""What an agent needs of the world beside its documented arguments."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from task.approvals.claims import CoreClaims
from task.approvals.door import Permissions
from task.blocking import close_all
from task.conversation.messages import Attachment
from task.conversation.state import StateSeal
from task.llm.base import ChatModel, ModelOptions
from task.llm.chat_request import Profile, profile_for
from task.llm.dial import DialChatModel, ModelListings
from task.llm.openai import OpenAIChatModel
from task.llm.transport import RETRIES, Retries, new_session
from task.llm.window import ContextWindow
from task.loop import Limits
from task.tools.dial_files import DialFiles
from task.tools.mcp.hub import MCPHub, ServerSpec
from task.tools.models import Caller
from task.tools.offload import Offloader

MAX_IMAGE_BYTES = 10 * 2**20


@dataclass(frozen=True, slots=True)
class OpenAIUpstream:
    base_url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class Connection:
    """One process's models, files and secrets, shared by all its agents.

    `chat_model` gives the model of that name for one caller; `inline_images` tells whether the model's provider cannot
    fetch DIAL files, so that pictures are sent as data. `options` hold for requests that do not say otherwise,
    `request_tokens` limits every model's requests; None: what Core's listing says. `link_hosts` are the hosts to which
    addresses in answers may lead though the model made them up. `unsent` names the options that the provider of a model
    does not take.
    """

    session: aiohttp.ClientSession
    chat_model: Callable[[str, Caller], ChatModel]
    files: DialFiles
    listings: ModelListings
    seal: StateSeal
    limits: Limits = field(default_factory=Limits)
    offloader: Offloader = field(default_factory=lambda: Offloader(None))
    inline_images: bool = False
    mcp: MCPHub = field(default_factory=lambda: MCPHub(()))
    permissions: Permissions = field(default_factory=Permissions)
    options: ModelOptions = field(default_factory=ModelOptions)
    request_tokens: int | None = None
    link_hosts: tuple[str, ...] = ()
    unsent: Callable[[str, ModelOptions], tuple[str, ...]] = lambda _, __: ()

    def window(self, model: str, api_key: str) -> ContextWindow:
        """The room that the model has for a conversation."""

        async def limit() -> int | None:
            if self.request_tokens is not None or self.inline_images:  # Core's listings are for Core's models
                return self.request_tokens
            return await self.listings.request_tokens(model, api_key)

        return ContextWindow(limit)

    async def image_url(self, image: Attachment, api_key: str) -> str | None:
        """The picture's URL as the model can use it, or None when it has none."""
        if image.data is not None:
            return f"data:{image.type};base64,{image.data}"
        if image.url is None or "://" in image.url or image.url.startswith("data:"):
            return image.url if image.url and image.url.startswith("data:") else None
        if not self.inline_images:
            return image.url
        file = await self.files.download(image.url, api_key, MAX_IMAGE_BYTES)
        return f"data:{image.type};base64,{base64.b64encode(file.content).decode()}"

    async def close(self) -> None:
        await close_all(self.mcp.close, self.session.close, self.files.close)


def open_connection(
    endpoint: str,
    *,
    secret: bytes | None = None,
    limits: Limits | None = None,
    offload_chars: int = 40_000,
    profile: Profile | None = None,
    openai: OpenAIUpstream | None = None,
    mcp_servers: Sequence[ServerSpec] = (),
    permissions: Permissions | None = None,
    options: ModelOptions | None = None,
    retries: Retries = RETRIES,
    request_tokens: int | None = None,
    link_hosts: Sequence[str] = (),
) -> Connection:
    """Models and files of one DIAL Core, or with `openai` the models of that upstream; must run in the event loop.

    Without `secret` states are sealed for this process only.
    """
    session = new_session()
    files = DialFiles(endpoint, session=session)

    def chat_model(name: str, caller: Caller) -> ChatModel:
        if openai is not None:
            return OpenAIChatModel(session, openai.base_url, openai.api_key, name, profile=profile, retries=retries)
        headers = caller.headers
        return DialChatModel(session, endpoint, name, caller.api_key, headers, profile=profile, retries=retries)

    def unsent(name: str, given: ModelOptions) -> tuple[str, ...]:
        return (profile or profile_for(name, openai.base_url if openai is not None else None)).dropped(given)

    return Connection(
        session,
        chat_model,
        files,
        ModelListings(session, endpoint),
        StateSeal(secret or os.urandom(32)),
        limits or Limits(),
        Offloader(files, offload_chars),
        inline_images=openai is not None,
        mcp=MCPHub(mcp_servers, files),
        permissions=replace(permissions or Permissions(), claims=CoreClaims(session, endpoint)),
        options=options or ModelOptions(),
        request_tokens=request_tokens,
        link_hosts=tuple(link_hosts),
        unsent=unsent,
    )
