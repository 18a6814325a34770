"""What an MCP server learns about the caller: headers of the request, digests of conversation and person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256

from task.llm.dial import core_headers
from task.tools.models import Caller

META_DOMAIN = "dial-general-purpose-agent"
CONVERSATION = f"{META_DOMAIN}/conversation_id"
PRINCIPAL = f"{META_DOMAIN}/principal"
_TRACE_HEADERS = frozenset({"traceparent", "tracestate"})


@dataclass(frozen=True, slots=True)
class Identity:
    """Headers of one request, and the `partition` within which lists of tools are shared."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    partition: str = "service"
    own: bool = False  # the headers contain a person's own key: nothing made with them may be shared


SERVICE = Identity()


async def identity_of(caller: Caller | None, *, forward_key: bool) -> Identity:
    """The trace headers, and for a server that is trusted with them also key and other headers."""
    if caller is None:
        return SERVICE
    if not forward_key:
        return Identity({name: value for name, value in caller.headers.items() if name.lower() in _TRACE_HEADERS})
    return Identity({**caller.headers, **core_headers(caller.api_key)}, await caller.principal(), own=True)


def conversation_meta(conversation_id: str, principal: str) -> dict[str, str]:
    """The `_meta` of a call: digests that stay the same for one conversation of one person.

    A conversation's id may contain its title and its owner's bucket.
    """
    values = {CONVERSATION: conversation_id, PRINCIPAL: principal}
    return {key: sha256(f"{key}\n{value}".encode()).hexdigest()[:32] for key, value in values.items() if value}
