"""`dial-agent traces`: list, show, export, replay and compare what runs did."""

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_args

import orjson
import typer

from task.cli import Exit
from task.cli.options import Config, Output, on_store, read_settings, write
from task.conversation.messages import Message, Role
from task.permissions.icerc import plain
from task.runs.replay import Divergence, divergence, replayed
from task.store.records import RunStatus, iso
from task.store.store import Store
from task.store.trace_records import Rating, Trace, TraceFilter

PAGE = 200
WIDEST = 60  # characters of a column
STATUSES: Sequence[str] = get_args(RunStatus)


def _only(what: str, *names: str, metavar: str | None = None) -> Any:
    return typer.Option(*names, metavar=metavar, help=f"Only those {what}.")


FILTERS: Mapping[str, Any] = {  # a field of TraceFilter: its option
    "session_id": Annotated[str | None, _only("of this session", "--session", metavar="ID")],
    "experiment": Annotated[str | None, _only("with this experiment label", metavar="LABEL")],
    "status": Annotated[RunStatus | None, _only(f"with this status: {', '.join(STATUSES)}", metavar="STATUS")],
    "door": Annotated[str | None, _only("of this front door: dial, v1, responses, chat, runs or coding")],
    "model": Annotated[str | None, _only("of this model")],
    "tool": Annotated[str | None, _only("that called this tool", metavar="NAME")],
    "text": Annotated[str | None, _only("with this in the question or the answer")],
    "rating": Annotated[
        Rating | None, _only("rated up, or down; exported as an evaluation set", "--rated", metavar="RATING")
    ],
}
TraceId = Annotated[str, typer.Argument(metavar="TRACE", help="A trace's id.")]

app = typer.Typer(no_args_is_help=True, add_completion=False)


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `FILTERS`, which it gets as its `which`."""

    @wraps(command)
    def with_options(**given: Any) -> None:
        which = TraceFilter(**{name: given.pop(name) for name in FILTERS})
        command(which=which, **given)

    own = [found for found in signature(command, eval_str=True).parameters.values() if found.name != "which"]
    options = [Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=FILTERS[name]) for name in FILTERS]
    with_options.__signature__ = Signature([*own, *options])  # type: ignore[attr-defined]
    return with_options


@app.command("list")
@filtered
def show_list(
    which: TraceFilter,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of traces to list.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Continue a listing where it stopped.")] = None,
    config: Config = None,
) -> None:
    """List traces, the newest first."""
    page = on_store(read_settings(config), lambda store: store.traces.list(None, limit, cursor, which))
    rows = [_row(trace) for trace in page.items]
    write(columns(list(rows[0]), [list(row.values()) for row in rows]) if rows else "There are no traces.")
    if page.cursor is not None:
        write(f"more traces: --cursor {page.cursor}", err=True)


def _row(trace: Trace) -> dict[str, str]:
    return {
        "TRACE": trace.trace_id,
        "STARTED": iso(trace.started_at)[:19],
        "STATUS": trace.status,
        "DOOR": trace.door,
        "MODEL": trace.model,
        "TURNS": str(len(trace.turns)),
        "CALLS": str(len(trace.tool_calls)),
        "TOKENS": str(trace.total_tokens),
        "COST": f"{trace.cost:.6f}".rstrip("0").rstrip(".") if trace.cost is not None else "",
        "SECONDS": f"{trace.completed_at - trace.started_at:.3f}" if trace.completed_at is not None else "",
        "EXPERIMENT": trace.experiment or "",
        "QUESTION": _question(trace),
    }


@app.command()
def show(
    trace_id: TraceId,
    full: Annotated[bool, typer.Option("--full", help="Print complete texts instead of first lines.")] = False,
    config: Config = None,
) -> None:
    """Show one trace: its turns and calls with their times, tokens, decisions, limits."""
    trace = _trace(config, trace_id)
    write(f"{trace.trace_id}  {trace.status}  {trace.model}  {iso(trace.started_at)}")
    row = _row(trace)
    facts = {
        "door": trace.door,
        "session": trace.session_id,
        "run": trace.run_id,
        "experiment": trace.experiment,
        "tokens": _tokens(trace),
        "cost": row["COST"],
        "seconds": row["SECONDS"],
        "limits": "; ".join(trace.limits),
        "remembered facts": ", ".join(trace.facts),
        "error": trace.error,
        "traces in DIAL Core": ", ".join(trace.core_traces),
        "rating": trace.rating,
        "comment": trace.comment,
        "messages before": trace.history,
    }
    for name in filter(facts.get, facts):
        write(f"  {name}: {_one_line(facts[name])}")
    write()
    failed = {call.call_id for call in trace.tool_calls if call.failed}
    for turn in trace.turns:
        name = f" {turn.name}" if turn.name else ""
        took = f" [{turn.seconds:.3f} s]" if turn.seconds is not None else ""
        ending = " FAILED" if turn.tool_call_id in failed else ""
        text = "" if full or turn.content is None else f"  {_one_line(turn.content)}"
        kept = f"  ({turn.size} characters, not kept)" if turn.content is None and turn.size else ""
        write(f"{turn.at - trace.started_at:+9.3f} s  {turn.role}{name}{took}{ending}{text}{kept}")
        for line in str(turn.content).expandtabs(4).splitlines() if full and turn.content else ():
            write(f"    {line}")
        for call in turn.tool_calls:
            write(f"{'':13}-> {call['name']} {_one_line(call['arguments'] or '')} ({call['id']})")
    if trace.decisions:
        write("\ndecisions:")
    for item in trace.decisions:
        why = _one_line(item.reason or item.by)
        write(f"  {item.verdict} {item.tool} ({item.call_id}){': ' + why if why else ''}")


@app.command()
@filtered
def export(which: TraceFilter, output: Output = None, config: Config = None) -> None:
    """Write traces as JSON lines, the newest first: whole, or with --rated the question, the answer and the tools."""
    from task.api.traces import TraceBody  # with all of the HTTP API

    async def exported(store: Store) -> list[bool]:
        found, cursor = list[bool](), None
        with output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout) as file:
            while True:
                page = await store.traces.list(None, PAGE, cursor, which)
                for listed in page.items:
                    trace = await store.traces.get(None, listed.trace_id)
                    whole = TraceBody.model_validate(trace, from_attributes=True).model_dump()
                    line = _rated(trace) if which.rating else {**whole, "owner": trace.owner}
                    file.write(json.dumps(line) + "\n")  # in ASCII, for terminals too
                    found.append(trace.content)
                if (cursor := page.cursor) is None:
                    return found

    found = on_store(read_settings(config), exported)
    if which.rating is not None:
        write(f"answers rated {which.rating}: {len(found)}", err=True)
        if not all(found):
            write(f"{found.count(False)} of them without texts: TRACE_CONTENT was off", err=True)


@app.command()
def replay(trace_id: TraceId, config: Config = None) -> None:
    """Run a trace again, offline, with its recorded model and tools; exit code 1 when the outcome differs."""
    trace = _trace(config, trace_id)
    _check_same(divergence(trace, asyncio.run(replayed(trace))), "recorded", "replayed")
    write(f"{trace_id}: {len(trace.turns)} turns replayed, the same as recorded ({trace.status})")


@app.command()
def compare(
    one: TraceId, other: Annotated[str, typer.Argument(metavar="OTHER", help="Another's id.")], config: Config = None
) -> None:
    """Show where two runs differ; exit code 1 when they do."""

    async def both(store: Store) -> tuple[Trace, Trace]:
        return await store.traces.get(None, one), await store.traces.get(None, other)

    first, second = on_store(read_settings(config), both)
    ours, theirs = ({**_row(trace), "TOKENS": _tokens(trace)} for trace in (first, second))
    compared = ("STATUS", "MODEL", "EXPERIMENT", "TURNS", "CALLS", "TOKENS", "COST", "SECONDS")
    rows = [(name.lower(), ours[name], theirs[name]) for name in compared]
    write(columns(("", first.trace_id, second.trace_id), rows))
    _check_same(divergence(first, second), one, other)
    write("\nBoth runs are the same, turn by turn.")


def _check_same(found: Divergence | None, one: str, other: str) -> None:
    if found is None:
        return
    place = {"end": "one run has no further turn", "status": "they end differently"}.get(found.what, found.what)
    write(f"\nThey differ from turn {found.turn + 1}: {place}")
    for name, value in ((one, found.one), (other, found.other)):
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        write(f"  {name}: {_one_line(text, 1000)}")
    raise typer.Exit(Exit.FAILED)


def columns(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The rows under their headings, each column as wide as its widest entry."""
    lines = [headings, *([_one_line(entry, WIDEST) for entry in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(entry.ljust(width) for entry, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def _trace(config: Path | None, trace_id: str) -> Trace:
    return on_store(read_settings(config), lambda store: store.traces.get(None, trace_id))


def _rated(trace: Trace) -> dict[str, Any]:
    # What an evaluation needs of an answer; texts are null where they are not kept.
    kept = trace.content
    return {
        **{name: getattr(trace, name) for name in ("trace_id", "model", "experiment", "rating", "comment")},
        "question": _question(trace) if kept else None,
        "answer": trace.answer if kept else None,
        "tools": [{"name": call.name, "arguments": call.arguments if kept else None} for call in trace.tool_calls],
    }


def _question(trace: Trace) -> str:
    asked = [turn for turn in trace.turns[: trace.asked] if turn.role == Role.USER]
    if trace.question or not asked:
        return trace.question or ""
    content = asked[-1].content
    return f"({asked[-1].size} characters, not kept)" if content is None else Message(Role.USER, content).text()


def _one_line(value: object, most: int = 160) -> str:
    text = plain(str(value))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _tokens(trace: Trace) -> str:
    parts = "; ".join(f"{model} {used.prompt_tokens} + {used.completion_tokens}" for model, used in trace.usage.items())
    return f"{trace.total_tokens} ({parts})" if trace.total_tokens else "0"
