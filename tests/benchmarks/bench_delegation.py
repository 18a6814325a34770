"""Eight independent look-ups by eight sub-agents and in one context: `python -m tests.benchmarks.bench_delegation`.

The model is scripted and takes the same time for each request; each look-up follows notes that name the next one.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from task.llm.scripted import Pause, Reply, says, wants
from task.product.delegation import PROMPT
from tests.benchmarks.figures import Figure, measure_and_report, quiet_machine
from tests.support.http_api import http_api
from tests.support.upstream_wire import Received

LOOK_UPS, HOPS, LATENCY = 8, 6, 0.15
WORDS = "What the note says about other things that this question is not about. " * 20
TOOL = '''
from pathlib import Path
from task.tools.declare import tool

@tool
def read_note(name: str) -> str:
    """Read a note."""
    return (Path(__file__).parent / f"{Path(name).name}.txt").read_text()
'''
ONE, MANY = "Read them yourself.", "Use sub-agents."


def written(folder: Path) -> Path:
    """The corpus, and the tool that reads it."""
    for chain in range(LOOK_UPS):
        for hop in range(HOPS):
            last = f"The value is {chain}{hop}." if hop == HOPS - 1 else f"It goes on in note-{chain}-{hop + 1}."
            (folder / f"note-{chain}-{hop}.txt").write_text(f"{WORDS}\n{last}\n")
    (folder / "notes.py").write_text(TOOL)
    return folder / "notes.py"


def reply(received: Received) -> Reply:
    """What the model does with a request."""
    system, question, *rest = (str(message.get("content")) for message in received.messages)
    asked = re.search(r"Begin with note-(\d)", question)
    delegates = MANY in question and PROMPT not in system
    chain, last = int(asked[1]) if asked else 0, rest[-1] if rest else ""
    following = re.search(r"goes on in (note-\d-\d)", last)
    if delegates:
        calls = wants("delegate", task="Begin with note-0")
        for number in range(1, LOOK_UPS):
            calls &= wants("delegate", task=f"Begin with note-{number}")
        made = says("All eight values.") if rest else calls
    elif following:
        made = wants("read_note", name=following[1])
    elif asked:
        made = says(last[-14:]) if rest else wants("read_note", name=f"note-{chain}-0")
    else:
        found = sum("The value is" in text for text in rest)
        made = wants("read_note", name=f"note-{found}-0") if found < LOOK_UPS else says("All eight values.")
    return Reply((Pause(LATENCY), *made.events))


async def asked(folder: Path, how: str) -> tuple[float, int, int]:
    """Seconds of the answer; the tokens, at four bytes each, that the agent's own requests have, and all requests."""
    settings: dict[str, Any] = {
        "agents": {"enabled": True},
        "http": {"steps": 200, "titles": "off"},
        "tool_paths": [str(folder / "notes.py")],
    }
    async with http_api(then=reply, tmp_path=folder / how[:3], **settings) as api:
        started = perf_counter()
        answer = await api.complete(f"What are the eight values? {how}")
        seconds = perf_counter() - started
        assert answer.json["choices"][0]["message"]["content"] == "All eight values.", answer.text
        sent = [(PROMPT in str(item.messages[0]["content"]), item.body) for item in api.upstream.requests]
    return seconds, _tokens([body for inner, body in sent if not inner]), _tokens([body for _, body in sent])


def _tokens(bodies: Sequence[object]) -> int:
    return sum(len(json.dumps(body)) for body in bodies) // 4


async def measured(folder: Path) -> list[Figure]:
    written(folder)
    alone, own, _ = await asked(folder, ONE)
    together, parents, every = await asked(folder, MANY)
    return [
        Figure("sub-agents: time ÷ in one context", together / alone, "", goal=0.25, judged=quiet_machine()),
        Figure("sub-agents: the agent's tokens ÷ in one context", parents / own, "", goal=0.4),
        Figure("sub-agents: all tokens ÷ in one context", every / own, ""),
    ]


if __name__ == "__main__":
    measure_and_report(measured)
