"""The benchmarks' upstream with a model whose times are given: a question's first line says what it does, and when.

The line is `plan` and JSON: `calls` has for each step with a call of `wait` the seconds until the model has written it
and those that it is to wait; `first`, `words` and `pause` are the answer's seconds to the first word, its words and the
seconds between them. `python -m tests.benchmarks.planned_upstream PORT`
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import uvloop

from tests.benchmarks import upstream

LEAST_PAUSE = 1e-6


def planned(
    calls: Sequence[tuple[float, float]], first: float, words: int, pause: float, kilobytes: float = 0.0
) -> str:
    """The question that has a model do this, with a prompt of this size."""
    plan = orjson.dumps({"calls": calls, "first": first, "words": words, "pause": pause}).decode()
    return f"plan {plan}\n{upstream.WORD * round((kilobytes * 1000 - len(plan)) / len(upstream.WORD))}"


def call(number: int, seconds: float) -> tuple[bytes, ...]:
    function = {"name": "wait", "arguments": orjson.dumps({"seconds": seconds}).decode()}
    calls = [{"index": 0, "id": f"call_{number}", "type": "function", "function": function}]
    role = upstream.frame({"role": "assistant", "content": ""})
    return role, upstream.frame({"tool_calls": calls}), upstream.frame({}, "tool_calls")


class PlannedPeer(upstream.Peer):
    """One connection to it."""

    _first = 0.0

    def reply(self, messages: Sequence[Mapping[str, Any]]) -> tuple[tuple[bytes, ...], float]:
        asked = max(place for place, message in enumerate(messages) if message["role"] == "user")
        plan = orjson.loads(str(messages[asked]["content"]).partition("\n")[0].removeprefix("plan "))
        done = sum(message["role"] == "tool" for message in messages[asked + 1 :])
        if done < len(plan["calls"]):
            self._first, seconds = plan["calls"][done]
            return call(done, seconds), LEAST_PAUSE
        self._first = plan["first"]
        return upstream.words(plan["words"]), max(plan["pause"], LEAST_PAUSE)

    async def _paced(self, frames: Sequence[bytes], pause: float) -> None:
        await asyncio.sleep(self._first)
        await super()._paced(frames, pause)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(PlannedPeer, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1])))
