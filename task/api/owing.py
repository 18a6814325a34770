"""What callers without a session come back to: turns in which they owe results of their own tools, and questions."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from task.conversation.messages import Message, Role, ToolCall

REMEMBERED = 1000


@dataclass(slots=True)
class Owing:
    """The turns as the model had them, our own calls included: a caller is shown, and sends, its own calls only.

    A turn belongs to its owner, the conversation before it and its calls. Ids of calls alone tell nothing: many
    servers begin with `call_0` in each conversation.
    """

    _turns: OrderedDict[bytes, tuple[Message, ...]] = field(default_factory=OrderedDict[bytes, tuple[Message, ...]])

    def remember(
        self,
        owner: str,
        prompt: str | None,
        sent: Sequence[Message],
        calls: Sequence[ToolCall],
        turn: Sequence[Message],
    ) -> None:
        """Keep the turn that answered `sent` with calls of the caller's tools."""
        before = _Before(owner, prompt)
        before.add(sent)
        self._turns[before.key(calls)] = tuple(turn)
        while len(self._turns) > REMEMBERED:
            self._turns.popitem(last=False)

    def completed(self, owner: str, prompt: str | None, sent: Sequence[Message]) -> list[Message]:
        """The messages; where they hold calls of the caller's tools, with our own calls of the same turn."""
        result: list[Message] = []
        before, known = _Before(owner, prompt), 0
        for place, message in enumerate(sent):
            turn = None
            if message.tool_calls and self._turns:
                start = _start(sent, place)
                before.add(sent[known:start])
                known = start
                turn = self._turns.get(before.key(message.tool_calls))
                if turn is not None:
                    del result[len(result) - (place - start) :]  # its words, which are in the turn
            result += turn if turn is not None else (message,)
        return result


def conversation_key(owner: str, prompt: str | None, sent: Sequence[Message]) -> str:
    """What tells the conversation from every other one of its owner."""
    before = _Before(owner, prompt)
    before.add(sent)
    return before.key(()).hex()


def ends_with(text: str, question: str) -> bool:
    """Whether the words end with the question, however the spaces between them are written."""
    return bool(question) and _letters(text).endswith(_letters(question))


class _Before:
    """What was said before a turn, as a digest."""

    def __init__(self, owner: str, prompt: str | None) -> None:
        self._digest = sha256(_packed([owner, prompt]))

    def add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._digest.update(_packed(_told(message)))

    def key(self, calls: Sequence[ToolCall]) -> bytes:
        whole = self._digest.copy()
        whole.update(_packed([_call(call) for call in calls]))
        return whole.digest()


def _start(sent: Sequence[Message], place: int) -> int:
    """Where the answer with the calls at `place` begins: some callers send its words as messages of their own."""
    while place and sent[place - 1].role is Role.ASSISTANT and not sent[place - 1].tool_calls:
        place -= 1
    return place


def _told(message: Message) -> list[Any]:
    parts = message.content if isinstance(message.content, list) else []
    return [
        message.role.value, _letters(message.text()), [part for part in parts if part.get("type") != "text"],
        message.tool_call_id, [_call(call) for call in message.tool_calls],
    ]  # fmt: skip


def _letters(text: str) -> str:
    return "".join(text.split())


def _call(call: ToolCall) -> list[Any]:
    try:
        return [call.id, call.name, json.loads(call.function.arguments)]  # callers write them anew
    except ValueError:
        return [call.id, call.name, call.function.arguments]


def _packed(data: list[Any]) -> bytes:
    return json.dumps(data, sort_keys=True).encode() + b"\n"
