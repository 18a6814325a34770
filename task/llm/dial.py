"""Chat models that DIAL Core serves as deployments."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote

import aiohttp

from task.conversation.messages import Message
from task.llm.base import Delta, ModelOptions, ToolSchema
from task.llm.chat_chunks import chat_deltas
from task.llm.chat_request import request_body
from task.llm.credentials import core_headers
from task.llm.profiles import Profile, profile_for
from task.llm.transport import RETRIES, Post, Retries, answer_bytes


@dataclass(frozen=True, slots=True)
class DialChatModel:
    """A deployment of the Core at `endpoint`, asked with the key or token of this one request; `headers` travel
    on.

    Without `profile` the deployment's name tells it.
    """

    session: aiohttp.ClientSession
    endpoint: str
    deployment: str
    api_key: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    api_version: str | None = None
    profile: Profile | None = None
    retries: Retries = RETRIES

    @property
    def name(self) -> str:
        return self.deployment

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        profile = self.profile or profile_for(self.deployment)
        body = request_body(self.deployment, messages, tools, options, profile)
        post = Post(self._url(), body, {**self.headers, **core_headers(self.api_key)})
        return chat_deltas(answer_bytes(self.session, post, self.retries), (self.api_key,))

    def _url(self) -> str:
        path = f"{self.endpoint.rstrip('/')}/openai/deployments/{quote(self.deployment, safe='/')}/chat/completions"
        return f"{path}?api-version={quote(self.api_version)}" if self.api_version else path
