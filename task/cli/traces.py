"""`dial-agent traces`: list, show, export, replay and compare what runs did."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from task.cli.exits import Exit
from task.cli.keys import Config, with_store
from task.store.records import RunStatus
from task.store.trace_records import Rating

if TYPE_CHECKING:
    from task.store.store import Store
    from task.store.trace_records import Trace, TraceFilter

PAGE = 200

app = typer.Typer(help="List, show, export, replay and compare what runs did.", no_args_is_help=True)

Session = Annotated[str | None, typer.Option(metavar="ID", help="Only those of this session.")]
Experiment = Annotated[str | None, typer.Option(metavar="LABEL", help="Only those with this experiment label.")]
Status = Annotated[
    RunStatus | None,
    typer.Option(metavar="STATUS", help=f"Only those with this status: {', '.join(get_args(RunStatus))}."),
]
Door = Annotated[
    str | None, typer.Option(help="Only those of this front door: dial, v1, responses, chat, runs or coding.")
]
Model = Annotated[str | None, typer.Option(help="Only those of this model.")]
Tool = Annotated[str | None, typer.Option(metavar="NAME", help="Only those that called this tool.")]
Words = Annotated[str | None, typer.Option("--text", help="Only those with this in the question or the answer.")]
Rated = Annotated[
    Rating | None, typer.Option(metavar="RATING", help="Only those rated up, or down; exported as an evaluation set.")
]
TraceId = Annotated[str, typer.Argument(metavar="TRACE", help="A trace's id.")]


@app.command("list")
def show_list(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of traces to list.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Continue a listing where it stopped.")] = None,
    session: Session = None,
    experiment: Experiment = None,
    status: Status = None,
    door: Door = None,
    model: Model = None,
    tool: Tool = None,
    text: Words = None,
    rated: Rated = None,
    config: Config = None,
) -> None:
    """List traces, the newest first."""
    from task.cli.trace_text import listing

    wanted = _filter(session, experiment, status, door, model, tool, text, rated)
    page = with_store(config, lambda store: store.traces.list(None, limit, cursor, wanted))
    print(listing(page.items))
    if page.cursor is not None:
        print(f"more traces: --cursor {page.cursor}", file=sys.stderr)


@app.command()
def show(
    trace_id: TraceId,
    full: Annotated[bool, typer.Option("--full", help="Print complete texts instead of first lines.")] = False,
    config: Config = None,
) -> None:
    """Show one trace: its turns and calls with their times, tokens, decisions, limits."""
    from task.cli.trace_text import details

    print(details(_trace(config, trace_id), full=full))


@app.command()
def export(
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to this file instead of printing.")] = None,
    session: Session = None,
    experiment: Experiment = None,
    status: Status = None,
    door: Door = None,
    model: Model = None,
    tool: Tool = None,
    text: Words = None,
    rated: Rated = None,
    config: Config = None,
) -> None:
    """Write traces as JSON lines, the newest first: whole, or with --rated the question, the answer and the tools."""
    from task.cli.trace_text import evaluation_line, json_line

    wanted = _filter(session, experiment, status, door, model, tool, text, rated)

    async def write(store: Store) -> list[bool]:
        found, cursor = list[bool](), None
        with output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout) as file:
            while True:
                page = await store.traces.list(None, PAGE, cursor, wanted)
                for listed in page.items:
                    trace = await store.traces.get(None, listed.trace_id)
                    file.write(json_line(trace) if rated is None else evaluation_line(trace))
                    found.append(trace.content)
                if (cursor := page.cursor) is None:
                    return found

    found = with_store(config, write)
    if rated is not None:
        print(f"answers rated {rated}: {len(found)}", file=sys.stderr)
        if not all(found):
            print(f"{found.count(False)} of them without texts: TRACE_CONTENT was off", file=sys.stderr)


@app.command()
def replay(trace_id: TraceId, config: Config = None) -> None:
    """Run a trace again, offline, with its recorded model and tools; exit code 1 when the outcome differs."""
    import asyncio

    from task.cli.trace_text import difference
    from task.runs.replay import parting, replayed

    trace = _trace(config, trace_id)
    parted = parting(trace, asyncio.run(replayed(trace)))
    if parted is not None:
        print(difference(parted, "recorded", "replayed"))
        raise typer.Exit(Exit.FAILED)
    print(f"{trace_id}: {len(trace.turns)} turns replayed, the same as recorded ({trace.status})")


@app.command()
def compare(
    one: TraceId, other: Annotated[str, typer.Argument(metavar="OTHER", help="Another's id.")], config: Config = None
) -> None:
    """Show where two runs differ; exit code 1 when they do."""
    from task.cli.trace_text import difference, side_by_side
    from task.runs.replay import parting

    async def both(store: Store) -> tuple[Trace, Trace]:
        return await store.traces.get(None, one), await store.traces.get(None, other)

    first, second = with_store(config, both)
    print(side_by_side(first, second))
    parted = parting(first, second)
    if parted is not None:
        print(difference(parted, one, other))
        raise typer.Exit(Exit.FAILED)
    print("\nBoth runs are the same, turn by turn.")


def _trace(config: Path | None, trace_id: str) -> Trace:
    return with_store(config, lambda store: store.traces.get(None, trace_id))


def _filter(
    session: str | None,
    experiment: str | None,
    status: RunStatus | None,
    door: str | None,
    model: str | None,
    tool: str | None,
    text: str | None,
    rated: Rating | None,
) -> TraceFilter:
    from task.store.trace_records import TraceFilter

    return TraceFilter(
        session_id=session, experiment=experiment, status=status, door=door, model=model, tool=tool, text=text,
        rating=rated,
    )  # fmt: skip
