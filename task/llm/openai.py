"""Chat models behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field

import aiohttp

from task.conversation.messages import Message
from task.llm.base import Delta, ModelOptions, ToolSchema
from task.llm.chat_chunks import chat_deltas
from task.llm.chat_request import Profile, profile_for, request_body
from task.llm.text_calls import with_text_calls
from task.llm.transport import RETRIES, Retries, answer_bytes


@dataclass(frozen=True, slots=True)
class OpenAIChatModel:
    """`model` at `base_url`, the part before `/chat/completions`; a query such as `?api-version=…` is kept.

    Without `profile` the address and the model's name determine it.
    """

    session: aiohttp.ClientSession
    base_url: str
    api_key: str
    model: str
    profile: Profile | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    retries: Retries = RETRIES

    @property
    def name(self) -> str:
        return self.model

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        profile = self.profile or profile_for(self.model, self.base_url)
        body = request_body(self.model, messages, tools, options, profile)
        url, headers = completions_url(self.base_url, profile.api_version), dict(self.headers)
        if self.api_key:
            bearer = profile.key_header == "Authorization"
            headers[profile.key_header] = f"Bearer {self.api_key}" if bearer else self.api_key
        deltas = chat_deltas(answer_bytes(self.session, url, body, headers, self.retries), (self.api_key,))
        return with_text_calls(deltas, messages, tools, options, self.model) if profile.text_calls else deltas


def completions_url(base_url: str, api_version: str | None = None) -> str:
    """The endpoint's address; `api_version` becomes a query parameter unless the address contains one."""
    address, _, query = base_url.partition("?")
    if api_version and "api-version=" not in query and "/openai/v1" not in address:
        query = f"{query}&api-version={api_version}".lstrip("&")
    return f"{address.rstrip('/')}/chat/completions" + (f"?{query}" if query else "")
