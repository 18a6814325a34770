"""`dial-agent tasks`: list and show coding tasks, resume one, take one back."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from task.cli import Exit
from task.cli.options import AsJson, Config, JsonLines, on_store, print_json, read_settings, write
from task.cli.run import OWNER, RunArguments, UnsafeNoSandbox, UnsafeWorkspace, run
from task.cli.traces import columns
from task.coding.checkpoints import Checkpoints
from task.coding.diffs import FileDiff
from task.coding.state import TaskState, task_of, tasks
from task.errors import Conflict, NotFound
from task.permissions.icerc import plain
from task.settings import Settings
from task.store.records import iso
from task.store.store import Store
from task.tools.workspace.root import held_alone
from task.tools.workspace.snapshots import SnapshotError
from task.tools.workspace.undo import NAMED, UndoPlan, some_of

app = typer.Typer(no_args_is_help=True, add_completion=False)

RunId = Annotated[str, typer.Argument(metavar="RUN", help="The id of a task's run.")]
NOT_KEPT = {"too large": "too large to be kept", "ignored": "not kept", "special": "neither file, folder nor link"}


@app.command("list")
def show_list(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Number of tasks to list.")] = 20,
    cursor: Annotated[str | None, typer.Option(help="Continue a listing where it stopped.")] = None,
    workspace: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Only those in this folder.")] = None,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """List coding tasks, the newest first."""
    folder = workspace.expanduser().resolve() if workspace is not None else None
    page = on_store(_settings(config), lambda store: tasks(store, OWNER, folder, limit, cursor))
    if as_json:
        print_json([_data(task) for task in page.items])
    else:
        write(listing(page.items))
    if page.cursor is not None:
        write(f"more tasks: --cursor {page.cursor}", err=True)


@app.command()
def show(
    run_id: RunId,
    diff: Annotated[bool, typer.Option("--diff", help="Print only the unified diff of what it changed.")] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Show one task, its plan, result and what it changed."""
    settings = _settings(config)

    async def found(store: Store) -> tuple[TaskState, list[FileDiff], str]:
        task = await task_of(store, OWNER, run_id)
        try:
            return task, await (await Checkpoints.open(store, task, settings.data_dir)).diffs(), ""
        except SnapshotError as error:
            return task, [], str(error)

    task, diffs, gone = on_store(settings, found)
    if diff:
        write("".join(item.text for item in diffs), raw=True, end="")
    elif as_json:
        changes = [{"path": item.path, "added": item.added, "removed": item.removed} for item in diffs]
        print_json({**_data(task), "changes": changes, "diff": "".join(item.text for item in diffs)})
    else:
        write(details(task, diffs))
    if gone:
        write(gone, err=True)


@app.command()
def resume(
    run_id: RunId,
    apply: Annotated[bool, typer.Option("--apply", help="Carry out what so far is only a plan.")] = False,
    max_steps: Annotated[int | None, typer.Option(min=1, max=1000, help="Model requests with tools, in all.")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Approve what the coding rules leave to the user.")] = False,
    as_json: JsonLines = False,
    unsafe_no_sandbox: UnsafeNoSandbox = False,
    unsafe_workspace: UnsafeWorkspace = False,
    config: Config = None,
) -> None:
    """Continue a task that was interrupted or reached a limit, with the steps that it has left."""
    settings = _settings(config, max_steps=max_steps)
    applied = apply or bool(on_store(settings, lambda store: task_of(store, OWNER, run_id)).legs)
    given = RunArguments(apply=applied, yes=yes, as_json=as_json, resume=run_id)
    given = replace(given, unsafe_no_sandbox=unsafe_no_sandbox, unsafe_workspace=unsafe_workspace)
    raise typer.Exit(run(settings, given))


@app.command()
def undo(
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN", help="The id of a task's run; else this folder's last.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Take back also what others have changed since the run.")
    ] = False,
    as_json: AsJson = False,
    config: Config = None,
) -> None:
    """Make all that a task has changed in its folder what it was before."""
    settings = _settings(config)

    async def work(store: Store) -> tuple[TaskState, UndoPlan]:
        if run_id is not None:
            task = await task_of(store, OWNER, run_id)
        else:
            here = (await tasks(store, OWNER, Path.cwd().resolve())).items
            task = next((task for task in here if task.undone_at is None and task.legs), None)
            if task is None:
                raise NotFound("No run has changed this folder; name one that `dial-agent tasks list` shows.")
        with held_alone(task.workspace):
            checkpoints = await Checkpoints.open(store, task, settings.data_dir)
            return task, await checkpoints.undo(force=force)

    try:
        task, plan = on_store(settings, work)
    except Conflict as error:
        write(f"Nothing was undone: {error}", err=True)
        raise typer.Exit(Exit.FAILED) from None
    if as_json:
        done = {"restored": sorted(plan.steps), "stayed": plan.stayed, "lost": plan.lost, "unread": plan.unread}
        print_json({"run_id": task.run.run_id, **done})
    else:
        write(undone(task, plan))


def _settings(config: Path | None, **given: Any) -> Settings:
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names of files may be no text
    return read_settings(config, **given)


def listing(tasks: Sequence[TaskState]) -> str:
    """One line for each task."""
    rows = [(task.run.run_id, iso(task.run.started_at)[:19], task.outcome, task.task) for task in tasks]
    return columns(("RUN", "STARTED", "RESULT", "TASK"), rows) if rows else "There are no coding tasks."


def details(task: TaskState, diffs: Sequence[FileDiff]) -> str:
    """The task, its plan, and the number of lines that it has changed in each file."""
    run, spent = task.run, task.progress.spent
    seconds = "" if run.ended_at is None else f", {run.ended_at - run.started_at:.0f} s"
    facts = {
        "Task": task.task,
        "Workspace": str(task.workspace),
        "Started": iso(run.started_at)[:19] + seconds,
        "Planner": task.planner,
        "Executor": task.coder,
        "Verify": task.verify or "",
        "Reason": task.reason,
        "Trace": run.trace_id or "",
        "Used": f"{spent.steps} steps, {spent.tokens:,} tokens" if spent.tokens else "",
    }
    lines = [f"{run.run_id}  {task.outcome}"]
    lines += [f"{name:<10} {plain(text)}" for name, text in facts.items() if text]
    if task.plan is not None:
        lines += ["", "Plan", *(f"  {number}. {plain(step)}" for number, step in enumerate(task.plan.plan, 1))]
    if diffs:
        lines += ["", "Changes"]
        lines += [f"  {f'+{item.added} -{item.removed}':>11}  {plain(item.path)}" for item in diffs]
        lines += ["", f"The diff: dial-agent tasks show {run.run_id} --diff"]
        if task.undone_at is None:
            lines.append(f"Take it back: dial-agent tasks undo {run.run_id}")
    return "\n".join(lines)


def undone(task: TaskState, plan: UndoPlan) -> str:
    """What was restored, and what was not."""
    lines = [
        f"  {'removed ' if before is None else 'restored'}  {plain(path)}"
        for path, (_, before) in sorted(plan.steps.items())
        if ".git" not in path.split("/")  # Git's own files would only hide the rest
    ]
    count = f"{len(lines)} {'path' if len(lines) == 1 else 'paths'}"
    lines.append(f"{task.run.run_id} is undone: {count} in {plain(str(task.workspace))}.")
    lines += [f"! {plain(path)} stays: there is something of somebody else in it." for path in plan.stayed]
    lines += [f"! {plain(path)} is not restored: {NOT_KEPT.get(why, plain(why))}." for path, why in plan.lost.items()]
    if plan.unread:
        lines.append(f"Not looked into: {some_of(plan.unread, NAMED)}.")
    return "\n".join(lines)


def _data(task: TaskState) -> dict[str, Any]:
    # The task as JSON data, without its conversation.
    run, spent, plan = task.run, task.progress.spent, task.plan
    return {
        "run_id": run.run_id,
        "task": task.task,
        "workspace": run.folder,
        "result": task.outcome,
        "reason": task.reason,
        "planner": task.planner,
        "coder": task.coder,
        "plan": plan and plan.plan,
        "tests": plan and plan.tests,
        "steps": spent.steps,
        "tokens": spent.tokens,
        "started_at": iso(run.started_at),
        "ended_at": iso(run.ended_at) if run.ended_at is not None else None,
        "undone_at": iso(task.undone_at) if task.undone_at is not None else None,
        "trace_id": run.trace_id,
    }
