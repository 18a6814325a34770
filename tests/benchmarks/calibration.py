"""A fixed piece of work whose time says how fast this machine is, so that goals in seconds hold on any other."""

from __future__ import annotations

import json
import statistics
from functools import cache
from time import process_time

REFERENCE_SECONDS = 0.00226  # of CPU, on the machine on which the goals were set
ROUNDS = 81
_DOCUMENT = {"messages": [{"role": "user", "content": f"words of a message {number}"} for number in range(200)]}


@cache
def slowness() -> float:
    """How many times as long as the reference machine this one takes; measured once, in a fifth of a second."""
    return statistics.median(_seconds() for _ in range(ROUNDS)) / REFERENCE_SECONDS


def _seconds() -> float:
    started = process_time()
    words: dict[str, int] = {}
    for _ in range(10):
        for message in json.loads(json.dumps(_DOCUMENT))["messages"]:
            for word in message["content"].split():
                words[word] = words.get(word, 0) + len(word)
    assert len(words) == 204
    return process_time() - started


if __name__ == "__main__":
    print(f"{slowness() * REFERENCE_SECONDS:.6f} s, {slowness():.3f} times the reference machine's")
