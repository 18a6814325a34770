"""Compare the messages a client sends with the stored ones: how many both share, and which are new."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

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
    kept, taken = _instructions(stored), 0
    old, sent = _blocks(stored[kept:]), sent[_instructions(sent) :]
    continues = len(sent) == 1 or all(message.role is Role.TOOL for message in sent)
    if continues and not (sent and len(old) == 1 and _same(old[0], sent)):
        return Merged(len(stored), tuple(sent))
    for mine, theirs in zip(old, _blocks(sent), strict=False):
        known = len(theirs)
        if not _same(_up_to(mine, theirs[-1]), theirs):  # the client may have added results to our last block
            while known and theirs[known - 1].role is Role.TOOL:
                known -= 1
            if not (known and _same(mine, theirs[:known])):
                break
        kept, taken = kept + len(mine), taken + known
        if known < len(theirs):
            break
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


def _up_to(mine: Sequence[Message], last: Message) -> Sequence[Message]:
    # A client that sends a result again does not have what we answered to it.
    sent_again = [
        n for n, message in enumerate(mine, 1) if last.tool_call_id and message.tool_call_id == last.tool_call_id
    ]
    return mine[: sent_again[-1]] if sent_again else mine


def _same(mine: Sequence[Message], theirs: Sequence[Message]) -> bool:
    ours, other = mine[0], theirs[0]
    if ours.role not in ANSWERING or other.role not in ANSWERING:
        return (ours.role, _words(ours), _other_parts(ours)) == (other.role, _words(other), _other_parts(other))
    ids = {call.id for message in theirs for call in message.tool_calls}
    results = {message.tool_call_id or "" for message in theirs if message.role is Role.TOOL}
    if _steps(mine, ids) != _steps(theirs, ids | results):
        return False
    texts, shown = _texts(mine), " ".join(_texts(theirs))
    return shown == " ".join(texts) or shown in texts[-1:]


def _steps(messages: Sequence[Message], ids: Collection[str]) -> list[tuple[object, ...]]:
    # The calls with these ids and their results. Arguments are compared as data, however they are formatted.
    steps: list[tuple[object, ...]] = []
    for message in messages:
        for call in message.tool_calls:
            arguments: object = call.function.arguments
            with suppress(orjson.JSONDecodeError):
                arguments = orjson.loads(call.function.arguments)
            steps += [(call.id, call.name, arguments)] if call.id in ids else []
        if message.role is Role.TOOL and message.tool_call_id in ids:
            steps.append((message.tool_call_id, _words(message)))
    return steps


def _texts(messages: Sequence[Message]) -> list[str]:
    return [text for message in messages if message.role is Role.ASSISTANT and (text := _words(message))]


def _words(message: Message) -> str:
    return " ".join(message.text().split())


def _other_parts(message: Message) -> list[object]:
    parts = message.content if isinstance(message.content, list) else []
    return [part for part in parts if part.get("type") != "text"]
