"""What travels beside a call's arguments: which conversation it belongs to, and whose."""

from __future__ import annotations

from hashlib import sha256

META_DOMAIN = "dial-general-purpose-agent"
CONVERSATION = f"{META_DOMAIN}/conversation_id"
PRINCIPAL = f"{META_DOMAIN}/principal"


def conversation_meta(conversation_id: str, principal: str) -> dict[str, str]:
    """The `_meta` of a call; stable for one conversation of one person, and telling nothing about either.

    A conversation's id may hold its title and its owner's bucket, so servers get digests.
    """
    named = {CONVERSATION: conversation_id, PRINCIPAL: principal}
    return {key: _digest(key, value) for key, value in named.items() if value}


def _digest(key: str, value: str) -> str:
    return sha256(f"{key}\n{value}".encode()).hexdigest()[:32]
