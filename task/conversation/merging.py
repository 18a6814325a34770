"""Compare the messages a client sends with the stored ones: how many both share, and which are new."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile

import orjson

from task.conversation.messages import ANSWERING, INSTRUCTIONS, Message, Role


@dataclass(frozen=True, slots=True)
class Merged:
    """`kept` stored messages stay and `new` ones follow; `branched`: the client lacks some of the stored ones."""

    kept: int
    new: tuple[Message, ...]
    branched: bool = False


def merged(stored: Sequence[Message], sent: Sequence[Message]) -> Merged:
    """Match `sent` with `stored` by their longest common prefix; where they differ, the client is right.

    A single message of the user, or results of the client's own tools, continue what is stored. The client may send an
    answer as it received it: without calls and results, with the calls of its own tools alone, as one text or as its
    last part. Instructions at the front of either are ignored, and those of `sent` are not in `new`.
    """
    skipped = _instructions(stored)
    old, sent = _blocks(stored[skipped:]), sent[_instructions(sent) :]
    continues = len(sent) == 1 or all(message.role is Role.TOOL for message in sent)
    if continues and not (len(old) == 1 and len(old[0]) == len(sent) == _common(old[0], sent)):
        return Merged(len(stored), tuple(sent))
    kept, taken, blocks = skipped, 0, _blocks(sent)
    for mine, theirs in zip(old, blocks, strict=False):
        known = _known(mine, theirs)
        common = _common(known, theirs)
        if common < len(theirs) and not _same_texts(mine, theirs):
            whole = common == len(known)  # the client has added to our last block
            kept, taken = (kept + len(mine), taken + common) if whole else (kept, taken)
            break
        kept, taken = kept + len(mine), taken + len(theirs)
    return Merged(kept, tuple(sent[taken:]), branched=kept < len(stored))


def _instructions(messages: Sequence[Message]) -> int:
    return next((n for n, message in enumerate(messages) if message.role not in INSTRUCTIONS), len(messages))


def _blocks(messages: Sequence[Message]) -> list[list[Message]]:
    # One block for each message of the user, and one for all that answers it.
    blocks: list[list[Message]] = []
    for message in messages:
        if blocks and message.role in ANSWERING and blocks[-1][-1].role in ANSWERING:
            blocks[-1].append(message)
        else:
            blocks.append([message])
    return blocks


def _known(mine: Sequence[Message], theirs: Sequence[Message]) -> Sequence[Message]:
    """Our block as a client knows it that received the calls of its own tools alone: our texts around the other calls
    are one message with them."""
    ids = {call.id for message in theirs for call in message.tool_calls}
    if not ids or _common(mine, theirs) == min(len(mine), len(theirs)):
        return mine
    known: list[Message] = []
    for message in mine:
        if message.role is Role.TOOL:
            known += [message] if message.tool_call_id in ids else []
            continue
        calls = tuple(call for call in message.tool_calls if call.id in ids)
        if known and known[-1].role is not Role.TOOL:
            before = known.pop()
            text = f"{before.text()} {message.text()}"
            known.append(replace(before, content=text, tool_calls=(*before.tool_calls, *calls)))
        elif calls or message.text():
            known.append(replace(message, tool_calls=calls))
    return known


def _common(mine: Sequence[Message], theirs: Sequence[Message]) -> int:
    same = (_compared(one) == _compared(other) for one, other in zip(mine, theirs, strict=False))
    return sum(takewhile(bool, same))


def _compared(message: Message) -> tuple[object, ...]:
    calls = list[tuple[str, str, object]]()
    for call in message.tool_calls:
        arguments: object = call.function.arguments
        with suppress(orjson.JSONDecodeError):  # they are compared as data, however they are formatted
            arguments = orjson.loads(call.function.arguments)
        calls.append((call.id, call.name, arguments))
    parts = message.content if isinstance(message.content, list) else []
    others = [part for part in parts if part.get("type") != "text"]
    return message.role, _words(message.text()), others, calls, message.tool_call_id


def _same_texts(mine: Sequence[Message], theirs: Sequence[Message]) -> bool:
    # A client that keeps no calls sends the texts alone.
    if any(message.role is not Role.ASSISTANT or message.tool_calls for message in theirs):
        return False
    sent, stored = (
        [text for message in side if message.role is Role.ASSISTANT and (text := _words(message.text()))]
        for side in (theirs, mine)
    )
    return bool(stored) and " ".join(sent) in (" ".join(stored), stored[-1])


def _words(text: str) -> str:
    return " ".join(text.split())
