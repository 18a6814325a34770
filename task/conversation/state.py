"""Save a turn in the chat's hidden state, signed so that no one else can write it."""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from task.conversation.messages import ANSWERING, CUT, Message, Role, message_from
from task.conversation.pruning import Budget, cut, marked, shortened
from task.conversation.sources import number_of

TOOL_CALL_HISTORY_KEY = "tool_call_history"
VERSION = 2
FINGERPRINT = b"dial-agent: fingerprint of a state secret"
PENDING_KEY = "pending"
_SEALED = ("version", TOOL_CALL_HISTORY_KEY, PENDING_KEY, "references", "turn", "expires", "resumes", "grants")
MAX_BYTES = 200_000
_LONGEST_TEXT = 2_000  # beside calls, in a state without room
_SHORTENED = f"\n{CUT}shortened in the saved history; call the tool again if the rest is needed]"


class StateRejected(Exception):
    """A state that is not ours, not this principal's, or damaged; the text says which."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that waits for the user's decision, which is valid for what `digest` identifies only.

    `code` answers it in words; older states have none.
    """

    call_id: str
    digest: str
    code: str = ""


@dataclass(frozen=True, slots=True)
class TurnState:
    """One turn's tool history, with references into other stores.

    A suspended turn has an id (`turn`), its `pending` calls, and the time until which they may be decided (`expires`,
    Unix time). `resumes` is the id of the suspended turn that this one resumed: its history includes that turn's.
    `grants` is what the user has allowed for the rest of the conversation, as JSON data.
    """

    history: tuple[Message, ...] = ()
    pending: tuple[WaitingCall, ...] = ()
    references: Mapping[str, str] = field(default_factory=dict[str, str])
    turn: str = ""
    expires: int = 0
    resumes: str = ""
    grants: tuple[Mapping[str, object], ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the waiting calls."""
        return tuple(waiting.code for waiting in self.pending)


@dataclass(frozen=True, slots=True)
class StateSeal:
    """Packs and verifies states with an HMAC-SHA-256 over content and principal."""

    secret: bytes

    def fingerprint(self) -> str:
        """What tells this secret from others and reveals nothing of it, in 32 hex characters: slow to compute, so that
        short secrets are not guessed from it."""
        return hashlib.scrypt(self.secret, salt=FINGERPRINT, n=2**12, r=8, p=1, dklen=16).hex()

    def pack(self, turn: TurnState, principal: str) -> dict[str, object]:
        """The state as JSON data, at most 200 KiB: the longest results and arguments are shortened until it fits, and
        where that is not enough, the oldest calls are left out.
        """
        stored = list(map(_stored, turn.history))
        if len(json.dumps(stored, ensure_ascii=True)) > MAX_BYTES:
            stored = list(map(_stored, _shortened(turn.history)))
        body: dict[str, object] = {
            "version": VERSION,
            TOOL_CALL_HISTORY_KEY: stored,
            PENDING_KEY: [asdict(item) for item in turn.pending],
            "references": dict(turn.references),
            "turn": turn.turn,
            # Whole numbers and text only: a chat written in JavaScript returns 2.0 as 2.
            "expires": int(turn.expires),
            "resumes": turn.resumes,
            "grants": json.dumps([dict(grant) for grant in turn.grants]),
        }
        return {**body, "signature": self.signature(body, principal)}

    def no_tools(self, text: str) -> dict[str, object]:
        """The state of an answer without tool calls; no other text, such as another model's, can carry it.

        The user's bucket would have to be asked for in each turn: it is bound to the text alone.
        """
        return {TOOL_CALL_HISTORY_KEY: [], "signature": self.signature({"text": "".join(text.split())}, "")}

    def unpack(self, state: Mapping[str, object], principal: str) -> TurnState:
        """The turn in a state.

        Raises:
            StateRejected: another version, another principal, tampered or malformed.
        """
        if state.get("version") != VERSION:
            raise StateRejected("unknown version")
        body: dict[str, Any] = {key: state.get(key) for key in _SEALED}
        given = str(state.get("signature")).encode(errors="replace")
        if not hmac.compare_digest(given, self.signature(body, principal).encode()):
            raise StateRejected("the signature does not fit")
        try:
            history = tuple(map(message_from, body[TOOL_CALL_HISTORY_KEY]))
            if other := next((item.role for item in history if item.role not in ANSWERING), None):
                raise ValueError(f"a tool history does not contain a {other} message")
            return TurnState(
                history,
                tuple(WaitingCall(**item) for item in body[PENDING_KEY]),
                dict(body["references"]),
                str(body["turn"]),
                int(body["expires"]),
                str(body["resumes"]),
                tuple(dict(grant) for grant in json.loads(body["grants"])),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateRejected("malformed") from error

    def signature(self, body: Mapping[str, object], principal: str) -> str:
        """The proof that we wrote this body, for this principal."""
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hmac.new(self.secret, f"{principal}\n{text}".encode(), hashlib.sha256).hexdigest()


def turn_history(added: Sequence[Message]) -> tuple[Message, ...]:
    """The messages of a turn that the chat does not keep itself: calls and their results."""
    return tuple(message for message in added if message.tool_calls or message.role is Role.TOOL)


def waits(state: Mapping[str, object] | None) -> int:
    """How many waiting calls an unverified state claims; never base a permission on it."""
    pending = state.get(PENDING_KEY) if state is not None else None
    return len(cast("list[object]", pending)) if isinstance(pending, list) else 0


def _stored(message: Message) -> dict[str, object]:
    if not message.attachments and not message.failed:
        return message.as_stored()
    kept = tuple(item for item in message.attachments if number_of(item) is not None or item.is_stored_picture)
    return replace(message, attachments=kept, failed=False).as_stored()


def _size(message: Message) -> int:
    return len(json.dumps(_stored(message), ensure_ascii=True)) + 2


def _shortened(history: Sequence[Message]) -> list[Message]:
    brief = list[Message]()
    for message in history:
        text = message.text()
        if message.tool_calls and len(text) > _LONGEST_TEXT:  # the chat has all of it
            message = replace(message, content=text[:_LONGEST_TEXT] + _SHORTENED)
        files = (item if number_of(item) is None else replace(item, data=item.title) for item in message.attachments)
        brief.append(replace(message, reasoning_content=None, attachments=tuple(files)))
    room = Budget(tokens=MAX_BYTES)
    parts = cut(shortened(brief, room, _size, (2_000, 200), _SHORTENED), room, count=_size)
    return marked(parts.kept, parts.dropped)
