"""Tool calls cut into the fragments that providers really send, from a seeded generator."""

import json
import string
from dataclasses import dataclass
from random import Random
from typing import Any

Fragment = dict[str, Any]  # an item of `delta.tool_calls`


@dataclass(frozen=True, slots=True)
class WireCall:
    """A call as its sender means it; `id` is None where the stream must not carry one."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class FragmentStyle:
    """How calls are cut.

    `index`: kept, missing, zero, or with gaps. `ids`: on the first fragment, on all, late (the second), nowhere (none),
    or as empty strings. `names`: once or repeated. `arguments`: in pieces, whole, or as an object. `empty`: no
    arguments as `{}` (braces), "" (text) or null. `batch`: how many fragments one chunk may hold.
    """

    index: str
    ids: str
    names: str
    arguments: str
    empty: str
    batch: int
    interleaved: bool


@dataclass(frozen=True, slots=True)
class Stream:
    """Chunks of fragments, and the calls they mean in order of first appearance."""

    style: FragmentStyle
    chunks: tuple[tuple[Fragment, ...], ...]
    calls: tuple[WireCall, ...]


def random_stream(random: Random) -> Stream:
    """One to four invented calls in a style that keeps them distinguishable."""
    index = random.choice(("kept", "missing", "zero", "gaps"))
    ids = random.choice(("first", "all", "late", "none", "empty"))
    style = FragmentStyle(
        index,
        ids,
        names=random.choice(("once", "repeated")),
        arguments=random.choice(("pieces", "pieces", "whole", "object")),
        empty=random.choice(("braces", "text", "null")),
        batch=random.choice((1, 1, 2, 5)),
        interleaved=(index in ("kept", "gaps") or ids == "all") and random.random() < 0.5,
    )
    calls = [_random_call(random, style) for _ in range(random.randint(1, 4))]
    if index in ("missing", "zero") and ids in ("none", "empty", "late"):
        # Of two anonymous calls of one name in a row the first needs arguments, or nothing distinguishes them.
        pairs = zip(calls, [*calls[1:], None], strict=True)
        calls = [call for call, after in pairs if after is None or call.arguments or call.name != after.name]
    queues = [_fragments_of(call, number, style, random) for number, call in enumerate(calls)]
    order, chunks = list[int](), list[tuple[Fragment, ...]]()
    while any(queues):
        fragments: list[Fragment] = []
        for _ in range(random.randint(1, style.batch)):
            if waiting := [number for number, queue in enumerate(queues) if queue]:
                number = random.choice(waiting) if style.interleaved else waiting[0]
                order.append(number)
                fragments.append(queues[number].pop(0))
        chunks.append(tuple(fragments))
    return Stream(style, tuple(chunks), tuple(calls[number] for number in dict.fromkeys(order)))


def _random_call(random: Random, style: FragmentStyle) -> WireCall:
    name = random.choice(("calculator", "execute_code", "rag_search_tool", "f"))
    arguments = {_word(random): _value(random, depth=2) for _ in range(random.choice((0, 1, 1, 2, 4)))}
    has_id = style.ids in ("first", "all") or (style.ids == "late" and style.arguments == "pieces" and bool(arguments))
    return WireCall(name, arguments, f"call_{random.getrandbits(48):012x}" if has_id else None)


def _fragments_of(call: WireCall, number: int, style: FragmentStyle, random: Random) -> list[Fragment]:
    index = {"kept": number, "missing": None, "zero": 0, "gaps": 3 + number * 7}[style.index]
    fragments: list[Fragment] = []
    for position, piece in enumerate(_pieces(call, style, random)):
        fragment: Fragment = {"index": index} if index is not None else {}
        if style.ids == "empty":
            fragment["id"] = ""
        elif call.id is not None and {"first": position == 0, "all": True, "late": position == 1}[style.ids]:
            fragment["id"] = call.id
        named = {"name": call.name} if position == 0 or style.names == "repeated" else {}
        fragments.append({**fragment, "type": "function", "function": {**named, "arguments": piece}})
    return fragments


def _pieces(call: WireCall, style: FragmentStyle, random: Random) -> list[Any]:
    if not call.arguments:
        return [{"braces": "{}", "text": "", "null": None}[style.empty]]
    if style.arguments == "object":
        return [call.arguments]
    text = json.dumps(call.arguments, ensure_ascii=random.random() < 0.5)
    if style.arguments == "whole":
        return [text]
    cuts = sorted(random.sample(range(1, len(text)), min(random.randint(1, 12), len(text) - 1)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    opening = random.choice(([], [""], [None])) if style.ids != "late" else []
    return [*opening, *pieces]


def _word(random: Random) -> str:
    return "".join(random.choices(string.ascii_lowercase, k=random.randint(1, 8)))


def _value(random: Random, depth: int) -> Any:
    kind = random.choice(("text", "number", "flag", "null", "list", "object")[: 6 if depth else 4])
    if kind == "list":
        return [_value(random, depth - 1) for _ in range(random.randint(0, 3))]
    if kind == "object":
        return {_word(random): _value(random, depth - 1) for _ in range(random.randint(0, 3))}
    text = "".join(random.choices('ab "\\{}[]:,\n\té漢🙂', k=random.randint(0, 12)))
    number, flag = random.choice((0, -1, 3.5, 10**12)), random.random() < 0.5
    return {"text": text, "number": number, "flag": flag}.get(kind)
