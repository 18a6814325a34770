"""What a turn leaves behind in the chat's hidden state, sealed so that nobody else can write it."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from task.conversation.messages import FunctionCall, Message, Role, ToolCall

TOOL_CALL_HISTORY_KEY = "tool_call_history"
VERSION = 2
PENDING_KEY = "pending"
_SEALED = ("version", TOOL_CALL_HISTORY_KEY, PENDING_KEY, "references", "turn", "expires", "resumes", "grants")
MAX_BYTES = 200_000
_SHORTENED = "\n[... shortened in the saved history; call the tool again if the rest is needed]"


class StateRejected(Exception):
    """A state that is not ours, not this principal's, or damaged; the text says which, for the trace."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A call that waits for a person's decision; the decision holds for what `digest` names and for nothing else."""

    call_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class TurnState:
    """One turn's tool history, with references into other stores.

    A suspended turn has an id (`turn`), its `pending` calls, and the time until which they may be decided (`expires`,
    seconds since the epoch). `resumes` is the id of the suspended turn that this one went on with: its history holds
    that turn's as well. `grants` is what the person has allowed for the rest of the conversation, as JSON data.
    """

    history: tuple[Message, ...] = ()
    pending: tuple[Waiting, ...] = ()
    references: Mapping[str, str] = field(default_factory=dict[str, str])
    turn: str = ""
    expires: int = 0
    resumes: str = ""
    grants: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class StateSeal:
    """Packs and checks states with an HMAC-SHA-256 over content and principal."""

    secret: bytes

    def pack(self, turn: TurnState, principal: str) -> dict[str, Any]:
        """The state as JSON data, at most about 200 kB: results are shortened, the longest first, until it fits."""
        body: dict[str, Any] = {
            "version": VERSION,
            TOOL_CALL_HISTORY_KEY: [_stored(message) for message in _fitting(turn.history)],
            PENDING_KEY: [asdict(item) for item in turn.pending],
            "references": dict(turn.references),
            "turn": turn.turn,
            # Whole numbers and text only: a chat written in JavaScript gives 2.0 back as 2.
            "expires": int(turn.expires),
            "resumes": turn.resumes,
            "grants": json.dumps([dict(grant) for grant in turn.grants]),
        }
        return {**body, "signature": self._signature(body, principal)}

    def unpack(self, state: Mapping[str, Any], principal: str) -> TurnState:
        """The turn that `state` holds.

        Raises:
            StateRejected: another version, another principal, tampered or malformed.
        """
        if state.get("version") != VERSION:
            raise StateRejected("unknown version")
        body = {key: state.get(key) for key in _SEALED}
        if not hmac.compare_digest(str(state.get("signature")), self._signature(body, principal)):
            raise StateRejected("the signature does not fit")
        try:
            return _turn(body)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateRejected("malformed") from error

    def _signature(self, body: Mapping[str, Any], principal: str) -> str:
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hmac.new(self.secret, f"{principal}\n{text}".encode(), hashlib.sha256).hexdigest()


def turn_history(added: Sequence[Message]) -> tuple[Message, ...]:
    """Of a turn's messages those the chat does not keep itself: calls and their results."""
    return tuple(message for message in added if message.tool_calls or message.role is Role.TOOL)


def waits(state: Mapping[str, Any] | None) -> int:
    """How many calls the state says are waiting; it may be anybody's state, so the number decides nothing."""
    pending: Any = state.get(PENDING_KEY) if state is not None else None
    return len(cast("list[Any]", pending)) if isinstance(pending, list) else 0


def _turn(body: Mapping[str, Any]) -> TurnState:
    return TurnState(
        tuple(_restored(item) for item in body[TOOL_CALL_HISTORY_KEY]),
        tuple(Waiting(**item) for item in body[PENDING_KEY]),
        dict(body["references"]),
        str(body["turn"]),
        int(body["expires"]),
        str(body["resumes"]),
        tuple(dict(grant) for grant in json.loads(body["grants"])),
    )


def _stored(message: Message) -> dict[str, Any]:
    wire = message.as_dict()
    if message.reasoning_content:
        wire["reasoning_content"] = message.reasoning_content
    return wire


def _restored(item: dict[str, Any]) -> Message:
    role = Role(item["role"])
    if role not in (Role.ASSISTANT, Role.TOOL):
        raise ValueError(f"a {role} message has no place in a tool history")
    calls = tuple(
        ToolCall(call["id"], FunctionCall(call["function"]["name"], call["function"]["arguments"]))
        for call in item.get("tool_calls", ())
    )
    return Message(
        role,
        item.get("content"),
        tool_calls=calls,
        tool_call_id=item.get("tool_call_id"),
        name=item.get("name"),
        reasoning_content=item.get("reasoning_content"),
    )


def _size(message: Message) -> int:
    return len(json.dumps(_stored(message), ensure_ascii=True)) + 2


def _fitting(history: Sequence[Message]) -> list[Message]:
    messages = list(history)
    sizes = [_size(message) for message in messages]
    if sum(sizes) <= MAX_BYTES:
        return messages
    messages = [replace(message, reasoning_content=None) for message in messages]
    sizes = [_size(message) for message in messages]
    for keep in (2_000, 200):
        for position in sorted(range(len(messages)), key=lambda place: -sizes[place]):
            if sum(sizes) <= MAX_BYTES:
                return messages
            text = messages[position].text()
            if messages[position].role is Role.TOOL and len(text) > keep + len(_SHORTENED):
                messages[position] = replace(messages[position], content=text[:keep] + _SHORTENED)
                sizes[position] = _size(messages[position])
    return messages
