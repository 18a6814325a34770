"""Turns stored for callers that keep their conversation themselves and were shown less than was done.

They see, and send, calls of their own tools only; and of a call that was approved in words, nothing but the question,
the words and the answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import orjson

from task.api.platform.run_request import RunRequest
from task.conversation.history import unanswered
from task.conversation.messages import Message, Role, ToolCall
from task.conversation.replies import is_reply
from task.store.store import Store
from task.store.turns import StoredTurn


@dataclass(frozen=True, slots=True)
class Completed:
    """A conversation with all that the model had; its last turn begins at the place `start` of what was sent."""

    messages: list[Message]
    start: int


async def completed(store: Store, owner: str, prompt: str | None, sent: Sequence[Message]) -> Completed:
    """The messages that were sent, with the turns that the store has kept of their conversation.

    A turn belongs to its owner, the conversation before it and its calls. Ids of calls alone are not enough: many
    servers begin with `call_0` in each conversation.
    """
    keys = dict(_keys(owner, prompt, sent))
    found = await store.turns.find(owner, set(keys.values())) if keys else {}
    result: list[Message] = []
    places: list[int] = []
    start = 0
    for place, message in enumerate(sent):
        places.append(len(result))
        turn = found.get(keys.get(place, ""))
        if turn is not None:
            result[places[turn.start] :] = turn.messages
            start = min(start, turn.start)
            continue
        result.append(message)
        start = place + 1 if message.role is Role.USER else start
    return Completed(result, start)


def kept_turn(
    request: RunRequest, added: Sequence[Message], calls: Sequence[ToolCall], question: str
) -> tuple[str, StoredTurn] | None:
    """The turn that such a caller comes back to, with its key; None where it was shown all of it.

    `calls` are the caller's to make, `question` is what was asked about others.
    """
    if not request.sent or not (calls or request.start is not None):
        return None
    before = _Before(request.caller.owner, request.options.prompt)
    before.add(request.sent)
    start, turn = len(request.sent), tuple(added)
    if request.start is not None:
        start, turn = request.start, since_the_user((*request.history, *request.new, *added))
    return before.key(calls), StoredTurn(start, _as_asked(turn, question) if question else turn)


def is_decision(message: Message) -> bool:
    """Whether the message has the words of a decision, whatever it is about."""
    return is_reply(words_of(message))


def words_of(message: Message) -> str:
    """The user's text; nothing where the message has parts: a decision is text only."""
    return message.content if message.role is Role.USER and isinstance(message.content, str) else ""


def decides(sent: Sequence[Message], place: int) -> bool:
    """Whether the message at that place has the words of a decision, right after an assistant's message."""
    return place > 0 and sent[place - 1].role is Role.ASSISTANT and is_decision(sent[place])


def conversation_key(owner: str, prompt: str | None, sent: Sequence[Message]) -> str:
    """The key of the conversation among those of its owner."""
    before = _Before(owner, prompt)
    before.add(sent)
    return before.key(())


def ends_with(text: str, question: str) -> bool:
    """Whether the text ends with the question, whitespace aside."""
    return bool(question) and _without_spaces(text).endswith(_without_spaces(question))


def since_the_user(messages: Sequence[Message]) -> tuple[Message, ...]:
    """What was done since the user's last message."""
    asked = [place for place, message in enumerate(messages) if message.role is Role.USER]
    return tuple(messages[asked[-1] + 1 :] if asked else messages)


class _Before:
    """The conversation before a turn, as a digest."""

    def __init__(self, owner: str, prompt: str | None) -> None:
        self._digest = sha256(_packed([owner, prompt]))

    def add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._digest.update(_packed(_canonical(message)))

    def key(self, calls: Sequence[ToolCall]) -> str:
        whole = self._digest.copy()
        whole.update(_packed([_call(call) for call in calls]))
        return whole.hexdigest()


def _keys(owner: str, prompt: str | None, sent: Sequence[Message]) -> Iterator[tuple[int, str]]:
    before, known = _Before(owner, prompt), 0
    for place, message in enumerate(sent):
        if message.role is not Role.ASSISTANT or not (message.tool_calls or decides(sent, place - 1)):
            continue
        start = _start(sent, place) if message.tool_calls else place
        before.add(sent[known:start])
        known = start
        yield place, before.key(message.tool_calls)


def _start(sent: Sequence[Message], place: int) -> int:
    # Some callers send the text before the calls as messages of their own.
    while place and sent[place - 1].role is Role.ASSISTANT and not sent[place - 1].tool_calls:
        place -= 1
    return place


def _as_asked(turn: Sequence[Message], question: str) -> tuple[Message, ...]:
    waiting = {call.id for call in unanswered(turn)}
    place = max(place for place, message in enumerate(turn) if message.tool_calls)
    step = turn[place]
    made = tuple(call for call in step.tool_calls if call.id not in waiting)
    done = (replace(step, content=None, tool_calls=made), *turn[place + 1 :]) if made else ()
    text = "\n\n".join(filter(None, (step.text(), question)))
    return (*turn[:place], *done, Message(Role.ASSISTANT, text))


def _canonical(message: Message) -> list[Any]:
    parts = message.content if isinstance(message.content, list) else []
    return [
        message.role.value, _without_spaces(message.text()), [part for part in parts if part.get("type") != "text"],
        message.tool_call_id, [_call(call) for call in message.tool_calls],
    ]  # fmt: skip


def _without_spaces(text: str) -> str:
    return "".join(text.split())


def _call(call: ToolCall) -> list[Any]:
    arguments = call.function.arguments
    with suppress(orjson.JSONDecodeError, orjson.JSONEncodeError):  # the latter: nested too deep
        arguments = orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    return [call.id, call.name, arguments]  # callers write them in their own format


def _packed(data: list[Any]) -> bytes:
    return json.dumps(data, sort_keys=True).encode() + b"\n"
