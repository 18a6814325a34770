"""The cost of the gate and the filter of answers: `python -m tests.benchmarks.bench_gate`."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Callable, Sequence
from time import process_time, time

from task.conversation.messages import FunctionCall, Message, ToolCall, assistant, tool_message, user
from task.output.links import Suspicion
from task.output.sinks import DefangedChoice
from task.permissions.decisions import Allowed, CallRequest, Deferred, Effect, PermissionMode
from task.permissions.gate import Grants, PolicyGate
from task.permissions.policy import DEFAULT_POLICY, Policy, Rule
from task.permissions.taint import ContextView, Origin
from tests.benchmarks.figures import Figure, report
from tests.support.choices import RecordingChoice

ROUNDS, CALLS, PIECES = 15, 200, 20_000
ORIGINS = {"search": Origin.OUTSIDE, "calculator": Origin.OWN}
URL = "https://docs.example/page-19"
READS, FETCHES = frozenset({Effect.READ}), frozenset({Effect.READ, Effect.NETWORK})
COMMAND, QUOTED = "git log --oneline -5", "git log --oneline '-5'"  # the first is only split, the second parsed
COMMANDS = f"{COMMAND} | head -3 && ls -la src"


def conversation() -> list[Message]:
    """Twenty searches with results of 4,000 characters."""
    messages = [user("What do the documents say?")]
    for number in range(20):
        call = ToolCall(f"c{number}", FunctionCall("search", json.dumps({"query": f"page {number}"})))
        text = f"https://docs.example/page-{number} " + "Some words of a page. " * 180
        messages += [assistant(None, [call]), tool_message(call, text)]
    return messages


def request(name: str, effects: frozenset[Effect], messages: Sequence[Message], **arguments: str) -> CallRequest:
    """A call as the toolbox passes it to the gate: with a view of the conversation that is still unread."""
    call = ToolCall("next", FunctionCall(name, json.dumps(arguments)))
    return CallRequest(call, dict(arguments), effects, ContextView(messages, ORIGINS))


def measure() -> list[Figure]:
    """Microseconds of a decision, and of a piece of an answer that goes through the filter."""
    messages = conversation()
    shell = Policy((Rule("allow", command=("git log", "head", "ls")),))
    runs = frozenset({Effect.READ, Effect.EXECUTE})
    gates = (
        ("gate: a call that reads", DEFAULT_POLICY, lambda: request("extract", READS, messages, file_url="files/b/x")),
        ("gate: a search", DEFAULT_POLICY, lambda: request("search", FETCHES, messages, query="what is new")),
        ("gate: a page whose URL is known", DEFAULT_POLICY, lambda: request("fetch", FETCHES, messages, url=URL)),
    )
    figures = [Figure(name, _decision(policy, made, Allowed), "µs", 35) for name, policy, made in gates]

    def command(text: str) -> float:
        return _decision(shell, lambda: request("shell_run", runs, messages[:1], command=text), Allowed)

    asked = _decision(DEFAULT_POLICY, lambda: request("write", FETCHES | {Effect.WRITE}, messages, text="x"), Deferred)
    figures += [
        Figure("gate: a command", command(COMMAND), "µs", 30),
        Figure("gate: a command with quotes", command(QUOTED), "µs", 35),
        Figure("gate: three commands with pipes", command(COMMANDS), "µs"),
    ]
    return [*figures, Figure("gate: a call that is asked, with its card", asked, "µs"), *_pieces()]


def _decision(policy: Policy, made: Callable[[], CallRequest], expected: type) -> float:
    gate = PolicyGate(policy, Grants(time), PermissionMode.DEFAULT, "p", "c", time)

    async def decided() -> float:
        requests = [made() for _ in range(CALLS)]
        started = process_time()
        for one in requests:
            decision = await gate.decide(one)
            assert isinstance(decision, expected), decision
        return (process_time() - started) / CALLS * 1e6

    asyncio.run(decided())  # loads the grammar
    return statistics.median(asyncio.run(decided()) for _ in range(ROUNDS))


def _pieces() -> list[Figure]:
    pieces = [f" {word}" for word in ("the", "page", "says", "how", "it", "works.", "Then,", "measured")]
    return [Figure("filter of answers: a plain piece", max(_added(pieces), 0.0), "µs", 0.5)]


def _added(pieces: Sequence[str]) -> float:
    """Microseconds that the filter adds to one piece."""
    bare, filtered = _Nowhere(), DefangedChoice(_Nowhere(), Suspicion(lambda _: False, lambda: True))
    filtered.append_content("It begins")
    samples = [_of_pieces(filtered.append_content, pieces) - _of_pieces(bare.append_content, pieces) for _ in range(9)]
    return statistics.median(samples)


def _of_pieces(append: Callable[[str], None], pieces: Sequence[str]) -> float:
    times = PIECES // len(pieces)
    started = process_time()
    for _ in range(times):
        for piece in pieces:
            append(piece)
    return (process_time() - started) / (times * len(pieces)) * 1e6


class _Nowhere(RecordingChoice):
    def append_content(self, content: str) -> None:
        return


if __name__ == "__main__":
    report(measure())
