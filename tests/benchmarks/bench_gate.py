"""The cost of the gate and the filter of answers: `python -m tests.benchmarks.bench_gate`."""

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
    """A call as the toolbox passes it to the gate; its view of the conversation is still unread."""
    call = ToolCall("next", FunctionCall(name, json.dumps(arguments)))
    return CallRequest(call, dict(arguments), effects, ContextView(messages, ORIGINS))


def reading(messages: Sequence[Message]) -> float:
    """Milliseconds until the addresses of a conversation are known, once for all calls of a turn."""

    def read() -> float:
        view, started = ContextView(messages, ORIGINS), process_time()
        assert view.knows(URL)
        return (process_time() - started) * 1e3

    return statistics.median(read() for _ in range(ROUNDS))


def _decision(policy: Policy, made: Callable[[], CallRequest], expected: type) -> float:
    gate = PolicyGate(policy, Grants(time), PermissionMode.DEFAULT, "p", "c")

    async def decided() -> float:
        requests = [made() for _ in range(CALLS)]
        started = process_time()
        for one in requests:
            decision = await gate.decide(one)
            assert isinstance(decision, expected), decision
        return (process_time() - started) / CALLS * 1e6

    asyncio.run(decided())  # loads the grammar
    return statistics.median(asyncio.run(decided()) for _ in range(ROUNDS))


def measure() -> list[Figure]:
    """Microseconds of a decision, and of a piece of an answer that goes through the filter."""
    messages = conversation()
    shell = Policy((Rule("allow", command=("git log", "head", "ls")),))
    runs, writes = frozenset({Effect.READ, Effect.EXECUTE}), FETCHES | {Effect.WRITE}
    known = request("fetch", FETCHES, messages, url=URL)  # by the first decision
    allowed: list[tuple[str, Policy, float | None, Callable[[], CallRequest]]] = [
        ("a call that reads", DEFAULT_POLICY, 35, lambda: request("extract", READS, messages, file_url="files/b/x")),
        ("a search", DEFAULT_POLICY, 35, lambda: request("search", FETCHES, messages, query="what is new")),
        ("a page whose URL is known", DEFAULT_POLICY, 35, lambda: known),
        ("a command", shell, 30, lambda: request("shell_run", runs, messages[:1], command=COMMAND)),
        ("a command with quotes", shell, 35, lambda: request("shell_run", runs, messages[:1], command=QUOTED)),
        ("three commands with pipes", shell, None, lambda: request("shell_run", runs, messages[:1], command=COMMANDS)),
    ]
    asked = _decision(DEFAULT_POLICY, lambda: request("write", writes, messages, text="x"), Deferred)
    return [
        *(
            Figure(f"gate: {name}", _decision(policy, made, Allowed), "µs", goal)
            for name, policy, goal, made in allowed
        ),
        Figure("gate: a call that is asked, with its card", asked, "µs"),
        Figure("gate: the addresses of a conversation of 80 kB", reading(messages), "ms"),
        Figure("filter of answers: a plain piece", max(_added(), 0.0), "µs", 0.5),
    ]


def _added() -> float:
    """Microseconds that the filter adds to one piece."""
    pieces = [f" {word}" for word in ("the", "page", "says", "how", "it", "works.", "Then,", "measured")]

    def of_pieces(append: Callable[[str], None]) -> float:
        started = process_time()
        for _ in range(PIECES // len(pieces)):
            for piece in pieces:
                append(piece)
        return (process_time() - started) / PIECES * 1e6

    bare, filtered = _Nowhere(), DefangedChoice(_Nowhere(), Suspicion(lambda _: False, lambda: True))
    filtered.append_content("It begins")
    return statistics.median(of_pieces(filtered.append_content) - of_pieces(bare.append_content) for _ in range(9))


class _Nowhere(RecordingChoice):
    def append_content(self, content: str) -> None:
        return


if __name__ == "__main__":
    report(measure())
