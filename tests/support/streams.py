"""Tool calls cut into the fragments that providers really send, from a seeded generator.

`fragmented(calls, style, random)` gives the fragments of given calls in one style; `random_stream(random)` invents
calls and a decidable style. A fragment is an item of `delta.tool_calls`; a list of fragments travels in one chunk.
"""

from __future__ import annotations

import json
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

Fragment = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WireCall:
    """A call as its sender means it; `id` is None where the stream must not carry one."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


@dataclass(frozen=True, slots=True)
class FragmentStyle:
    """How calls are cut.

    `ids`: on the first fragment, on all, late (the second), nowhere, or as empty strings. `arguments`: in pieces,
    whole, or as an object. `empty`: no arguments as `{}`, "" or null. `batch`: how many fragments one chunk may hold.
    """

    index: Literal["kept", "missing", "zero", "gaps"] = "kept"
    ids: Literal["first", "all", "late", "none", "empty"] = "first"
    names: Literal["once", "repeated"] = "once"
    arguments: Literal["pieces", "whole", "object"] = "pieces"
    empty: Literal["braces", "text", "null"] = "braces"
    interleaved: bool = False
    batch: int = 1

    @property
    def anonymous(self) -> bool:
        """Whether neither an id nor an index distinguishes calls."""
        return self.index in ("missing", "zero") and self.ids in ("none", "empty", "late")

    @property
    def decidable_interleaved(self) -> bool:
        return self.index in ("kept", "gaps") or self.ids == "all"


@dataclass(frozen=True, slots=True)
class Stream:
    """Chunks of fragments, and the calls they mean in order of first appearance."""

    style: FragmentStyle
    chunks: tuple[tuple[Fragment, ...], ...]
    calls: tuple[WireCall, ...]


def fragmented(calls: Sequence[WireCall], style: FragmentStyle, random: Random) -> Stream:
    queues = [_fragments_of(call, number, style, random) for number, call in enumerate(calls)]
    order: list[int] = []
    fragments: list[Fragment] = []
    while any(queues):
        waiting = [number for number, queue in enumerate(queues) if queue]
        number = random.choice(waiting) if style.interleaved else waiting[0]
        if number not in order:
            order.append(number)
        fragments.append(queues[number].pop(0))
    return Stream(style, _batched(fragments, style.batch, random), tuple(calls[number] for number in order))


def random_stream(random: Random) -> Stream:
    """One to four invented calls in a style that keeps them distinguishable."""
    style = FragmentStyle(
        index=random.choice(("kept", "missing", "zero", "gaps")),
        ids=random.choice(("first", "all", "late", "none", "empty")),
        names=random.choice(("once", "repeated")),
        arguments=random.choice(("pieces", "pieces", "whole", "object")),
        empty=random.choice(("braces", "text", "null")),
        batch=random.choice((1, 1, 2, 5)),
    )
    style = _with_interleaving(style, random)
    calls = [_random_call(random, style) for _ in range(random.randint(1, 4))]
    return fragmented(_distinguishable(calls, style), style, random)


def _with_interleaving(style: FragmentStyle, random: Random) -> FragmentStyle:
    return replace(style, interleaved=style.decidable_interleaved and random.random() < 0.5)


def _random_call(random: Random, style: FragmentStyle) -> WireCall:
    name = random.choice(("calculator", "execute_code", "rag_search_tool", "f"))
    arguments = {_word(random): _value(random, depth=2) for _ in range(random.choice((0, 1, 1, 2, 4)))}
    has_id = style.ids in ("first", "all") or (style.ids == "late" and style.arguments == "pieces" and bool(arguments))
    return WireCall(name, arguments, f"call_{random.getrandbits(48):012x}" if has_id else None)


def _distinguishable(calls: list[WireCall], style: FragmentStyle) -> list[WireCall]:
    """Of two anonymous calls of one name in a row the first needs arguments, or nothing distinguishes them."""
    if not style.anonymous:
        return calls
    pairs = zip(calls, [*calls[1:], None], strict=True)
    return [call for call, after in pairs if after is None or call.arguments or call.name != after.name]


def _fragments_of(call: WireCall, number: int, style: FragmentStyle, random: Random) -> list[Fragment]:
    pieces = _pieces(call, style, random)
    fragments: list[Fragment] = []
    for position, piece in enumerate(pieces):
        fragment: Fragment = {}
        index = _index(number, style)
        if index is not None:
            fragment["index"] = index
        if (call_id := _id(call, position, style)) is not None:
            fragment["id"] = call_id
        fragment["type"] = "function"
        named = position == 0 or style.names == "repeated"
        fragment["function"] = ({"name": call.name} if named else {}) | {"arguments": piece}
        fragments.append(fragment)
    return fragments


def _index(number: int, style: FragmentStyle) -> int | None:
    return {"kept": number, "missing": None, "zero": 0, "gaps": 3 + number * 7}[style.index]


def _id(call: WireCall, position: int, style: FragmentStyle) -> str | None:
    if style.ids == "empty":
        return ""
    sent_here = {"first": position == 0, "all": True, "late": position == 1, "none": False}[style.ids]
    return call.id if sent_here else None


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


def _batched(fragments: list[Fragment], batch: int, random: Random) -> tuple[tuple[Fragment, ...], ...]:
    chunks: list[tuple[Fragment, ...]] = []
    while fragments:
        size = random.randint(1, batch)
        chunks.append(tuple(fragments[:size]))
        fragments = fragments[size:]
    return tuple(chunks)


def _word(random: Random) -> str:
    return "".join(random.choices(string.ascii_lowercase, k=random.randint(1, 8)))


def _value(random: Random, depth: int) -> Any:
    kinds = ("text", "number", "flag", "null", "list", "object") if depth else ("text", "number", "flag", "null")
    match random.choice(kinds):
        case "text":
            return "".join(random.choices('ab "\\{}[]:,\n\té漢🙂', k=random.randint(0, 12)))
        case "number":
            return random.choice((0, -1, 3.5, 10**12))
        case "flag":
            return random.random() < 0.5
        case "list":
            return [_value(random, depth - 1) for _ in range(random.randint(0, 3))]
        case "object":
            return {_word(random): _value(random, depth - 1) for _ in range(random.randint(0, 3))}
        case _:
            return None
