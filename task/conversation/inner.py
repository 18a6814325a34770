"""What a sub-agent has done for a call that is still open: its messages, kept as interim messages of that call."""

import json
from collections.abc import Sequence
from dataclasses import replace

from task.conversation.messages import Message, Role, ToolCall, message_from, tool_message, unanswered

DELEGATE = "delegate"
INNER = "::inner::"  # between the ids of a call and of one that its sub-agent makes; no provider's id has it
ASKS = "ask-"  # begins the id, behind that of a tool's call, with which the tool asks the user for something
AT_WORK = "[A sub-agent works on this.]"


def inner(outer: ToolCall, call: ToolCall) -> ToolCall:
    """A sub-agent's call as it is called outside its conversation, where another sub-agent may have one of this id."""
    return replace(call, id=f"{outer.id}{INNER}{call.id}")


def outer_id(call_id: str) -> str:
    """The call of the conversation that waits for this one: the sub-agent's, else the call itself."""
    return call_id.partition(INNER)[0]


def interim(call: ToolCall, added: Sequence[Message]) -> Message:
    """The message that keeps what a sub-agent has added to its conversation for the call."""
    memo = json.dumps([message.as_stored() for message in added], ensure_ascii=False)
    return replace(tool_message(call, AT_WORK), memo=memo, interim=True)


def transcript(messages: Sequence[Message], call_id: str) -> list[Message]:
    """What a sub-agent has added so far for the open call, from the interim messages behind it."""
    place = next((n for n in reversed(range(len(messages))) if messages[n].role is not Role.TOOL), len(messages))
    kept = (item for item in messages[place:] if item.interim and item.tool_call_id == call_id)
    return [message_from(data) for item in kept for data in json.loads(item.memo)]


def asked_for(call_id: str) -> tuple[str, str]:
    """The call for which this one asks the user for something, and the own id of this one; empty where it does not."""
    outer, _, own = call_id.rpartition(INNER)
    return (outer, own) if own.startswith(ASKS) else ("", "")


def waiting_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """The open calls at the end of the conversation, and the open ones of its sub-agents."""
    found = list[ToolCall]()
    for call in unanswered(messages):
        found += [call, *(inner(call, item) for item in waiting_calls(transcript(messages, call.id)))]
    return found


def closed(messages: Sequence[Message], result: str) -> list[Message]:
    """What ends the open calls of a conversation whose process died: `result` for each. Calls of sub-agents stay open,
    which continue with this result for their own open calls."""
    ended = list[Message]()
    for call in unanswered(messages):
        if lost := unanswered(transcript(messages, call.id)):
            ended.append(interim(call, [tool_message(item, result, failed=True) for item in lost]))
        elif call.name != DELEGATE:
            ended.append(tool_message(call, result, failed=True))
    return ended
