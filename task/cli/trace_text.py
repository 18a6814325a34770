"""Traces as text in columns for people, and as JSON lines."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from task.conversation.messages import Message, Role
from task.runs.replay import Parting
from task.store.records import iso
from task.store.trace_records import Trace, TracedCall, TracedTurn

HEADINGS = (
    "TRACE", "STARTED", "STATUS", "DOOR", "MODEL", "TURNS", "CALLS", "TOKENS", "COST", "SECONDS", "EXPERIMENT",
    "QUESTION",
)  # fmt: skip
WIDEST = 60  # characters of a column that is not the last


def columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows under their headings, each column as wide as its widest entry; the last one is not cut."""
    lines = [headings, *([*(_one_line(entry, WIDEST) for entry in row[:-1]), row[-1]] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(entry.ljust(width) for entry, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def listing(traces: Sequence[Trace]) -> str:
    """One line for each trace."""
    if not traces:
        return "There are no traces."
    return columns(HEADINGS, [_row(trace) for trace in traces])


def details(trace: Trace, *, full: bool) -> str:
    """The trace as a person reads it: a line for each turn, with the time since the start."""
    lines = [f"{trace.trace_id}  {trace.status}  {trace.model}  {iso(trace.started_at)}"]
    facts = {
        "door": trace.door, "session": trace.session_id, "run": trace.run_id, "experiment": trace.experiment,
        "tokens": _tokens(trace), "cost": _cost(trace), "seconds": _seconds(trace),
        "limits": "; ".join(trace.limits), "error": trace.error, "rating": trace.rating, "comment": trace.comment,
        "messages before": str(trace.history) if trace.history else None,
    }  # fmt: skip
    lines += [f"  {name}: {_one_line(value)}" for name, value in facts.items() if value]
    calls = {call.call_id: call for call in trace.tool_calls}
    lines += ["", *(_turn(trace, turn, calls, full) for turn in trace.turns)]
    if trace.decisions:
        lines += ["", "decisions:"]
        for item in trace.decisions:
            why = _one_line(item.reason or item.by)
            lines.append(f"  {item.verdict} {item.tool} ({item.call_id}){': ' + why if why else ''}")
    return "\n".join(lines)


def side_by_side(one: Trace, other: Trace) -> str:
    """What can be counted, of the one and of the other."""
    rows = [
        ("status", one.status, other.status),
        ("model", one.model, other.model),
        ("experiment", one.experiment or "", other.experiment or ""),
        ("turns", str(len(one.turns)), str(len(other.turns))),
        ("calls", str(len(one.tool_calls)), str(len(other.tool_calls))),
        ("tokens", _tokens(one), _tokens(other)),
        ("cost", _cost(one), _cost(other)),
        ("seconds", _seconds(one), _seconds(other)),
    ]
    return columns(("", one.trace_id, other.trace_id), rows)


def difference(parted: Parting, one: str, other: str) -> str:
    """Where two runs part, and what differs there."""
    place = {"end": "one run has no further turn", "status": "they end differently"}.get(parted.what, parted.what)
    sides = "\n".join(f"  {name}: {_value(value)}" for name, value in ((one, parted.one), (other, parted.other)))
    return f"\nThey differ from turn {parted.turn + 1}: {place}\n{sides}"


def json_line(trace: Trace) -> str:
    """The trace in its documented shape, with the owner, as one line of JSON."""
    from task.api.platform.schemas import TraceBody

    shape = TraceBody.model_validate(trace, from_attributes=True).model_dump()
    return orjson.dumps({**shape, "owner": trace.owner}).decode() + "\n"


def evaluation_line(trace: Trace) -> str:
    """What an evaluation needs of a rated answer, as one line of JSON; texts are null where they are not kept."""
    kept = trace.content
    line = {
        "trace_id": trace.trace_id, "model": trace.model, "experiment": trace.experiment, "rating": trace.rating,
        "comment": trace.comment, "question": _question(trace) if kept else None,
        "answer": trace.answer if kept else None,
        "tools": [{"name": call.name, "arguments": call.arguments if kept else None} for call in trace.tool_calls],
    }  # fmt: skip
    return orjson.dumps(line).decode() + "\n"


def _row(trace: Trace) -> tuple[str, ...]:
    return (
        trace.trace_id, iso(trace.started_at)[:19], trace.status, trace.door, trace.model, str(len(trace.turns)),
        str(len(trace.tool_calls)), str(trace.total_tokens), _cost(trace), _seconds(trace), trace.experiment or "",
        _one_line(_question(trace), WIDEST),
    )  # fmt: skip


def _question(trace: Trace) -> str:
    if trace.question:
        return trace.question
    asked = [turn for turn in trace.turns[: trace.asked] if turn.role == Role.USER]
    if not asked:
        return ""
    content = asked[-1].content
    return f"({asked[-1].size} characters, not kept)" if content is None else Message(Role.USER, content).text()


def _turn(trace: Trace, turn: TracedTurn, calls: dict[str, TracedCall], full: bool) -> str:
    since = f"{turn.at - trace.started_at:+9.3f} s"
    took = f" [{turn.seconds:.3f} s]" if turn.seconds is not None else ""
    failed = turn.tool_call_id in calls and calls[turn.tool_call_id].failed
    name = f" {turn.name}" if turn.name else ""
    head = f"{since}  {turn.role}{name}{took}{' FAILED' if failed else ''}"
    lines = [head + ("" if full or turn.content is None else f"  {_one_line(turn.content)}")]
    if turn.content is None and turn.size:
        lines[0] += f"  ({turn.size} characters, not kept)"
    if full and turn.content:
        lines += [f"    {_harmless(line)}" for line in str(turn.content).expandtabs(4).splitlines()]
    lines += [
        f"{'':13}-> {call['name']} {_one_line(call['arguments'] or '')} ({call['id']})" for call in turn.tool_calls
    ]
    return "\n".join(lines)


def _one_line(value: object, most: int = 160) -> str:
    text = _harmless(" ".join(str(value).split()))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _harmless(line: str) -> str:
    # A terminal would obey control characters.
    return "".join(letter if letter.isprintable() else "?" for letter in line)


def _value(value: object) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return _one_line(text, 1000)


def _tokens(trace: Trace) -> str:
    parts = "; ".join(f"{model} {used.prompt_tokens} + {used.completion_tokens}" for model, used in trace.usage.items())
    return f"{trace.total_tokens} ({parts})" if trace.total_tokens else "0"


def _cost(trace: Trace) -> str:
    return f"{trace.cost:.6f}".rstrip("0").rstrip(".") if trace.cost is not None else ""


def _seconds(trace: Trace) -> str:
    return f"{trace.completed_at - trace.started_at:.3f}" if trace.completed_at is not None else ""
