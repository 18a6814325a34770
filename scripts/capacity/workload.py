"""Conversations as they arrive: a Poisson process whose turns have steps, words, calls and times drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from scripts.capacity.assumptions import Assumptions
from task.runs.traces import CHECKPOINT_SECONDS

BEFORE = 1800.0  # seconds; nearly all conversations that started earlier have ended
LONG = 30.0  # seconds; nearly all turns end sooner


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool, and what comes before it: seconds until the model has written it."""

    kind: str
    written: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn from its start on; its words come after the last call, `first` seconds later and `pause` apart."""

    start: float
    conversation: int
    calls: tuple[Call, ...]
    first: float
    words: int
    pause: float
    prompt_kilobytes: float

    @property
    def called(self) -> float:
        """Seconds until the results of all calls are there."""
        return sum(call.written + call.seconds for call in self.calls)

    @property
    def streamed(self) -> float:
        """Seconds from the first word to the last."""
        return (self.words - 1) * self.pause

    @property
    def seconds(self) -> float:
        return self.called + self.first + self.streamed

    @property
    def checkpoints(self) -> int:
        """How often its trace is kept while it is under way: a second after its start, or after what came next."""
        found, now, due = 0, 0.0, CHECKPOINT_SECONDS
        for waited in (*(each for call in self.calls for each in (call.written, call.seconds)), inf):
            now = min(now + waited, self.seconds)
            if due < now:
                found, due = found + 1, inf
            if due == inf:
                due = now + CHECKPOINT_SECONDS
        return found


def busy_rate(assumed: Assumptions, users: float) -> float:
    """Conversations that start in a second of the busy hour."""
    return users * assumed.conversations_a_day * assumed.busy_hour / 3600


def turns(assumed: Assumptions, rate: float, seconds: float, seed: int, speed: float = 1.0) -> list[Turn]:
    """The turns that start within so many seconds of a busy hour under way, in their order.

    `rate` is in conversations a second; with `speed` everything happens so many times as fast.
    """
    chosen = random.Random(seed)  # noqa: S311
    found: list[Turn] = []
    begin, number = -BEFORE, 0
    while (begin := begin + chosen.expovariate(rate)) < seconds * speed:
        number += 1
        found += (turn for turn in _conversation(assumed, chosen, begin, number) if 0 <= turn.start < seconds * speed)
    return sorted((_faster(turn, speed) for turn in found), key=lambda turn: turn.start)


def sample(assumed: Assumptions, conversations: int, seed: int) -> list[Turn]:
    """The turns of so many conversations, one conversation after the other."""
    chosen = random.Random(seed)  # noqa: S311
    return [turn for number in range(conversations) for turn in _conversation(assumed, chosen, 0.0, number)]


def crowd(known: Sequence[Turn], rate: float, seconds: float, seed: int) -> list[Turn]:
    """Turns like those known, `rate` of which start in a second: of so many people that they follow no order.

    They begin `LONG` before time 0, so that as many as usual are under way then.
    """
    chosen = random.Random(seed)  # noqa: S311
    found, start = list[Turn](), -LONG
    while (start := start + chosen.expovariate(rate)) < seconds:
        found.append(replace(chosen.choice(known), start=start))
    return found


def _conversation(assumed: Assumptions, chosen: random.Random, start: float, number: int) -> Iterator[Turn]:
    for _ in range(assumed.turns):
        turn = _turn(assumed, chosen, start, number)
        yield turn
        start += turn.seconds + assumed.think.draw(chosen)


def _turn(assumed: Assumptions, chosen: random.Random, start: float, number: int) -> Turn:
    pause = 1 / assumed.tokens_a_second.draw(chosen)
    [(least, most)] = chosen.choices(list(assumed.calls), list(assumed.calls.values()))
    kinds = chosen.choices(list(assumed.kinds), list(assumed.kinds.values()), k=chosen.randint(least, most))
    calls = [
        Call(kind, assumed.first_token.draw(chosen) + assumed.call_tokens * pause, assumed.call_seconds[kind])
        for kind in kinds
    ]
    words = max(round(assumed.answer_tokens.draw(chosen)), 1)
    prompt = assumed.prompt_tokens.draw(chosen) * assumed.characters_a_token / 1e3
    return Turn(start, number, tuple(calls), assumed.first_token.draw(chosen), words, pause, prompt)


def _faster(turn: Turn, speed: float) -> Turn:
    calls = tuple(Call(call.kind, call.written / speed, call.seconds / speed) for call in turn.calls)
    return Turn(
        turn.start / speed, turn.conversation, calls, turn.first / speed, turn.words, turn.pause / speed,
        turn.prompt_kilobytes,
    )  # fmt: skip
