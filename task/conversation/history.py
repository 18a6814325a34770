"""Make a conversation valid for a model: every call has its result, every result its call."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import replace

from task.conversation.messages import Message, Role, ToolCall, tool_message

INTERRUPTED = "Error: this call was interrupted and has no result. Call the tool again if its result is still needed."
NOT_APPROVED = (
    "Error: the user was asked whether this call may run and did not approve it, so it did not run. Their next message "
    "says what they want instead."
)
PERHAPS_RUN = (
    "Error: the user approved this call, but the answer was interrupted before its result was saved. It may have run: "
    "check whether it did before you call it again."
)

_ASSISTANT, _TOOL = Role.ASSISTANT, Role.TOOL  # enum members are slow to look up, and histories are long


def repaired(messages: Sequence[Message], pending: Collection[str] = ()) -> list[Message]:
    """The messages with every tool call answered exactly once, directly after it and in call order.

    An unanswered call gets the result "interrupted", unless its id is in `pending`; a tool message without a call
    and an assistant message without text and calls are left out; ids that repeat within one message become unique.
    """
    result: list[Message] = []
    position = 0
    while position < len(messages):
        message = messages[position]
        position += 1
        role = message.role
        if role is _ASSISTANT and message.tool_calls:
            answers: list[Message] = []
            while position < len(messages) and messages[position].role is _TOOL:
                answers.append(messages[position])
                position += 1
            result += _paired(message, answers, pending)
        elif role is not _TOOL and (role is not _ASSISTANT or message.content):
            result.append(message)
    return result


def _paired(message: Message, answers: Sequence[Message], pending: Collection[str]) -> list[Message]:
    ids = [call.id for call in message.tool_calls]
    if ids == [answer.tool_call_id for answer in answers] and len(set(ids)) == len(ids):
        return [message, *answers]
    waiting: defaultdict[str | None, deque[Message]] = defaultdict(deque)
    for answer in answers:
        waiting[answer.tool_call_id].append(answer)
    calls, results = list[ToolCall](), list[Message]()
    for call in _distinct(message.tool_calls):
        found = waiting[call[0]]
        calls.append(call[1])
        if found:
            results.append(replace(found.popleft(), tool_call_id=call[1].id))
        elif call[1].id not in pending:
            results.append(tool_message(call[1], INTERRUPTED, failed=True))
    return [replace(message, tool_calls=tuple(calls)), *results]


def _distinct(calls: Sequence[ToolCall]) -> list[tuple[str, ToolCall]]:
    seen: set[str] = set()
    result: list[tuple[str, ToolCall]] = []
    for call in calls:
        unique, number = call.id, 2
        while unique in seen:
            unique, number = f"{call.id}_{number}", number + 1
        seen.add(unique)
        result.append((call.id, call if unique == call.id else replace(call, id=unique)))
    return result


def unanswered(messages: Sequence[Message]) -> tuple[ToolCall, ...]:
    """The calls at the end of the conversation that have no result yet, in call order."""
    for position in range(len(messages) - 1, -1, -1):
        message = messages[position]
        if message.role is Role.TOOL:
            continue
        if message.role is not Role.ASSISTANT:
            return ()
        answered = {answer.tool_call_id for answer in messages[position + 1 :]}
        return tuple(call for call in message.tool_calls if call.id not in answered)
    return ()


def closed(history: Sequence[Message], waiting: Collection[str], text: str) -> list[Message]:
    """The history of a suspended turn that is not resumed: its waiting calls get `text` as their result."""
    calls = [call for call in unanswered(history) if call.id in waiting]
    return repaired([*history, *(tool_message(call, text, failed=True) for call in calls)])


def with_turn(history: Sequence[Message], answer: str) -> list[Message]:
    """One past turn: its saved tool history, then the final answer.

    The chat keeps all text of a turn as one string; text that the saved history contains already is removed from its
    beginning, so that the model does not read it twice.
    """
    rest = answer
    for message in history:
        text = message.content if message.role is Role.ASSISTANT and isinstance(message.content, str) else ""
        if text and rest.startswith(text):
            rest = rest[len(text) :].lstrip("\n")
    final = [Message(Role.ASSISTANT, rest)] if rest or not history else []
    return [*history, *final]
