"""`dial-agent runs`: list and show coding runs, resume one, take one back."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from task.cli.exits import Exit
from task.cli.store import Config, on_store

if TYPE_CHECKING:
    from task.settings import Settings
    from task.store.coding import CodingRun
    from task.store.store import Store

app = typer.Typer(help="List and show coding runs, resume one, take one back.", no_args_is_help=True)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="A run's id.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
UnsafeNoSandbox = Annotated[
    bool, typer.Option("--unsafe-no-sandbox", help="Run commands even where no sandbox can confine them.")
]
UnsafeWorkspace = Annotated[
    bool, typer.Option("--unsafe-workspace", help="Work even in your home, or in all of the machine.")
]


@app.command("list")
def show_list(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of runs to list.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Continue a listing where it stopped.")] = None,
    workspace: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Only those in this folder.")] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List coding runs, the newest first."""
    from task.cli.run import OWNER
    from task.cli.runs_text import listing, run_data

    folder = str(workspace.expanduser().resolve()) if workspace is not None else None
    page = on_store(_settings(config), lambda store: store.coding.list(OWNER, folder, limit, cursor))
    print(_json([run_data(run) for run in page.items]) if as_json else listing(page.items, time.time(), _width()))
    if page.cursor is not None:
        print(f"more runs: --cursor {page.cursor}", file=sys.stderr)


@app.command()
def show(
    run_id: RunId,
    diff: Annotated[bool, typer.Option("--diff", help="Print only the unified diff of what it changed.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show one run: its task, plan, result and what it changed."""
    from task.cli.runs_text import details, run_data
    from task.coding.checkpoints import Checkpoints
    from task.coding.diffs import FileDiff, whole
    from task.coding.snapshots import SnapshotError
    from task.permissions.icerc import visible

    settings = _settings(config)

    async def found(store: Store) -> tuple[CodingRun, list[FileDiff], str]:
        run = await _run(store, run_id)
        try:
            return run, await (await Checkpoints.open(store.coding, run, settings.data_dir)).diffs(), ""
        except SnapshotError as error:
            return run, [], str(error)

    run, diffs, gone = on_store(settings, found)
    if diff:
        text = whole(diffs)
        sys.stdout.write("".join(map(visible, text.splitlines(keepends=True))) if sys.stdout.isatty() else text)
    elif as_json:
        changes = [{"path": item.path, "added": item.added, "removed": item.removed} for item in diffs]
        print(_json({**run_data(run), "changes": changes, "diff": whole(diffs)}))
    else:
        print(details(run, diffs, _width()))
    if gone:
        print(gone, file=sys.stderr)


@app.command()
def resume(
    run_id: RunId,
    apply: Annotated[bool, typer.Option("--apply", help="Carry out what so far is only a plan.")] = False,
    max_steps: Annotated[int | None, typer.Option(min=1, max=1000, help="Model requests with tools, in all.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve what the coding rules leave to a person.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON event per line on standard output.")] = False,
    unsafe_no_sandbox: UnsafeNoSandbox = False,
    unsafe_workspace: UnsafeWorkspace = False,
    config: Config = None,
) -> None:
    """Continue a run that was interrupted or reached a limit, with the steps that it has left."""
    from task.cli.run import RunArguments
    from task.cli.run import run as carry_out

    settings = _settings(config, max_steps=max_steps)

    async def begun(store: Store) -> bool:
        return bool(await store.coding.checkpoints((await _run(store, run_id)).run_id))

    applied = apply or on_store(settings, begun)
    given = RunArguments(
        apply=applied, yes=yes, as_json=as_json, resume=run_id, unsafe_no_sandbox=unsafe_no_sandbox,
        unsafe_workspace=unsafe_workspace,
    )  # fmt: skip
    raise typer.Exit(carry_out(settings, given))


@app.command()
def undo(
    run_id: Annotated[str | None, typer.Argument(metavar="RUN", help="A run's id; else this folder's last.")] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take back also what somebody has changed since the run.")
    ] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Make all that a run has changed in its folder what it was before."""
    from task.cli.runs_text import undone
    from task.coding.checkpoints import Checkpoints, held_alone
    from task.coding.undo import Undoing
    from task.errors import Conflict

    settings = _settings(config)

    async def work(store: Store) -> tuple[CodingRun, Undoing, Sequence[str]]:
        run = await (_run(store, run_id) if run_id is not None else _last_here(store))
        with held_alone(Path(run.workspace)):
            checkpoints = await Checkpoints.open(store.coding, run, settings.data_dir)
            plan = await checkpoints.planned_undo()
            return run, plan, await checkpoints.undo(plan, force=force)

    try:
        run, plan, stay = on_store(settings, work)
    except Conflict as error:
        print(f"Nothing was undone: {error}", file=sys.stderr)
        raise typer.Exit(Exit.FAILED) from None
    if as_json:
        done = {"run_id": run.run_id, "restored": sorted(plan.steps), "stayed": list(stay), "lost": dict(plan.lost)}
        print(_json(done))
    else:
        print(undone(run, plan, stay))


def _settings(config: Path | None, **given: Any) -> Settings:
    from task.settings import load_settings

    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names of files may be no text
    # A run may have written settings into this folder: they must not lead to another store.
    chosen = {name: value for name, value in given.items() if value is not None}
    settings = load_settings(config, given=chosen, workspace=Path.cwd())
    if settings.ignored:
        print(f"Not taken from this folder's own settings: {', '.join(settings.ignored)}.", file=sys.stderr)
    return settings


async def _run(store: Store, run_id: str) -> CodingRun:
    from task.cli.run import OWNER

    return await store.coding.get(OWNER, run_id)


async def _last_here(store: Store) -> CodingRun:
    from task.cli.run import OWNER
    from task.errors import NotFound

    page = await store.coding.list(OWNER, str(Path.cwd().resolve()))
    for run in page.items:
        if run.undone_at is None and await store.coding.checkpoints(run.run_id):
            return run
    raise NotFound("No run has changed this folder; name one that `dial-agent runs list` shows.")


def _width() -> int | None:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _json(value: Any) -> str:
    return json.dumps(value, indent=2)  # ASCII: names of files may be no text
