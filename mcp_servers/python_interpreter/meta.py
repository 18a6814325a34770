"""Which session a call belongs to: read from what travels beside its arguments."""

import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_servers.callers import META_DOMAIN, principal_of

CONVERSATION = f"{META_DOMAIN}/conversation_id"
INPUTS = f"{META_DOMAIN}/inputs"
PICTURES = f"{META_DOMAIN}/pictures"
SECONDS = f"{META_DOMAIN}/seconds"
KERNEL = f"{META_DOMAIN}/kernel"
FRESH = f"{META_DOMAIN}/fresh"
MADE = f"{META_DOMAIN}/made"
LINKS = "links"


@dataclass(frozen=True, slots=True)
class CallMeta:
    """`handle` names the session; it cannot be guessed without the server's token. `owner` is for whom it is: the
    caller's principal. `kept` is False if the caller named no conversation: the session then serves this call only.
    `inputs` are the versions of the needed files, `seconds` is the time that the caller has left. `kernel` is the id of
    the session that the conversation had last; where it is not known, a new session is made only if `fresh` accepts
    that. `made` are the versions of files of that session, which a new one gets.
    """

    handle: str
    owner: str
    kept: bool
    inputs: Mapping[str, str] = field(default_factory=dict[str, str])
    link_pictures: bool = False
    seconds: float | None = None
    kernel: str = ""
    fresh: bool = False
    made: Mapping[str, str] = field(default_factory=dict[str, str])


def call_meta(meta: Mapping[str, Any], legacy_session: str | None, identity: str, token: str) -> CallMeta:
    """The call's session: by what `meta` names, else the older protocol's session, else a new one.

    Only the agent may name a principal; another caller is its own.
    """
    conversation = str(meta.get(CONVERSATION) or legacy_session or "")
    seconds, kernel = meta.get(SECONDS), meta.get(KERNEL)
    principal = principal_of(identity, meta)
    return CallMeta(
        handle_of(token, identity, principal, conversation or secrets.token_hex(16)),
        principal,
        bool(conversation),
        _versions(meta.get(INPUTS)),
        meta.get(PICTURES) == LINKS,
        seconds if isinstance(seconds, int | float) and seconds > 0 else None,
        kernel if isinstance(kernel, str) else "",
        meta.get(FRESH) is True,
        _versions(meta.get(MADE)),
    )


def _versions(files: Any) -> dict[str, str]:
    return {str(name): str(version) for name, version in files.items()} if isinstance(files, Mapping) else {}


def handle_of(token: str, identity: str, principal: str, conversation: str) -> str:
    """The same for the same caller and conversation, also after a restart."""
    named = json.dumps([identity, principal, conversation]).encode()
    return hmac.digest(token.encode(), named, "sha256").hex()[:32]
