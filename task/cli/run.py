"""Plan a task, and with `--apply` carry it out in a workspace: the output on the terminal, and an exit code."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from task.cli.coding_models import coding_models
from task.cli.exits import Exit
from task.cli.run_output import JsonRunOutput, RunOutput, TerminalRunOutput
from task.coding.checkpoints import Checkpoints, held_alone
from task.coding.journal import Journal, RunRecord
from task.coding.run import ModelAccess, Order, Work
from task.errors import InvalidRequest
from task.product.parts import command_limits
from task.runs.events import TaskResult
from task.settings import Settings
from task.store.coding import CodingRun
from task.store.store import Store
from task.tools.workspace.bounds import PROGRAM, refusal
from task.tools.workspace.commands import Commands
from task.tools.workspace.root import Workspace

IGNORED = (
    "Left out of the workspace's own files, which may be somebody else's: {names}. Set them in the environment, or "
    "name a file with --config."
)
OWNER = "local"  # as the HTTP API without keys calls everybody on this machine
EXITS: Mapping[TaskResult, Exit] = {
    "planned": Exit.DONE,
    "verified": Exit.DONE,
    "failed": Exit.FAILED,
    "not_verified": Exit.FAILED,
    "denied": Exit.FAILED,
    "limited": Exit.LIMITED,
    "interrupted": Exit.INTERRUPTED,
}


@dataclass(frozen=True, slots=True)
class RunArguments:
    """The command's own arguments; models and steps are settings. `task` is empty where a run is resumed."""

    task: str = ""
    apply: bool = False
    workspace: Path | None = None
    setup: str | None = None
    verify: str | None = None
    yes: bool = False
    as_json: bool = False
    resume: str | None = None
    unsafe_no_sandbox: bool = False
    unsafe_workspace: bool = False


def run(settings: Settings, given: RunArguments) -> int:
    """Plan, carry out, verify; the exit code says how it ended.

    Raises:
        InvalidRequest: no task, one that is no text, or a workspace that cannot be used.
        SettingsError: no model, or a key is missing.
        StoreUnavailable: the run cannot be recorded.
    """
    if not given.task.strip() and given.resume is None:
        raise InvalidRequest("The task is empty; write it in quotes after `run`, or name a run with --resume.")
    if given.task.strip() and given.resume is not None:
        raise InvalidRequest(f"The run {given.resume} has its task; leave the new one out, or leave out --resume.")
    _check_text("The task", given.task)
    for name, command in (("--setup", given.setup), ("--verify", given.verify)):
        if command is not None:
            _check_text(name, command)
            if not command.strip():  # an empty command succeeds, and would verify everything
                raise InvalidRequest(f"{name} is empty; name a command, or leave it out.")
    if given.resume is None:
        checked_workspace(given.workspace or Path.cwd(), settings, unsafe=given.unsafe_workspace)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal may not have every character
    output: RunOutput = JsonRunOutput() if given.as_json else TerminalRunOutput()
    try:
        return asyncio.run(_run(settings, given, output))
    except asyncio.CancelledError:  # SIGTERM before the run has begun
        return Exit.INTERRUPTED


def checked_workspace(path: Path, settings: Settings, *, unsafe: bool) -> Path:
    """The real path of a workspace.

    Raises:
        InvalidRequest: it is no folder, or one in which a run could reach more than a project.
    """
    try:
        found = path.expanduser().resolve()
    except (OSError, RuntimeError) as error:
        raise InvalidRequest(f"--workspace {path} cannot be used: {error}.") from error
    _check_text("--workspace", str(found))
    if reason := refusal(found, (settings.data_dir, settings.cache_dir), wide=unsafe):
        raise InvalidRequest(
            f"--workspace: {reason}. Choose a project's folder; --unsafe-workspace permits a wide one."
        )
    return found


def _check_text(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:  # the store and the models take nothing else
        raise InvalidRequest(f"{name} is not UTF-8 text.") from None


async def _run(settings: Settings, given: RunArguments, output: RunOutput) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    planner, coder = await coding_models(settings, OWNER)
    try:
        store = await coder.services.store.get()
        return await _worked(settings, given, output, store, planner, coder)
    finally:
        await planner.services.close()
        await coder.services.close()


async def _worked(
    settings: Settings,
    given: RunArguments,
    output: RunOutput,
    store: Store,
    planner: ModelAccess,
    coder: ModelAccess,
) -> int:
    run, record = await _recorded(settings, given, store, planner, coder)
    folder = checked_workspace(Path(run.workspace), settings, unsafe=given.unsafe_workspace)
    apply = given.apply and not settings.dry_run
    with Workspace(folder) as workspace:
        async with Commands(
            workspace, command_limits(settings), unsafe=given.unsafe_no_sandbox, gated=True
        ) as commands:
            journal = Journal(store, run, settings.data_dir, record)
            notes = tuple(_notes(settings, given, commands))
            order = Order(run.task, OWNER, apply, given.setup, record.verify, given.yes, settings.max_steps, notes)
            work = Work(order, journal, workspace, commands, planner, coder, output.show, output.ask)
            return EXITS[(await work.run()).result]


def _notes(settings: Settings, given: RunArguments, commands: Commands) -> Iterator[str]:
    if own := refusal(commands.workspace.path, PROGRAM):
        yield f"{own}: what the run changes there runs with your rights from then on."
    if settings.ignored:
        yield IGNORED.format(names=", ".join(settings.ignored))
    if given.setup is not None and not given.apply:
        yield "--setup runs with --apply only, and is not kept with the plan: give it again then."
    if given.apply and settings.dry_run:
        yield "DRY_RUN is set: nothing is changed, whatever --apply says."
    elif given.apply and (missing := commands.available):
        yield missing
    elif given.apply and not commands.confined:
        yield "Commands run without a sandbox: they can read and change all that you can."


async def _recorded(
    settings: Settings, given: RunArguments, store: Store, planner: ModelAccess, coder: ModelAccess
) -> tuple[CodingRun, RunRecord]:
    """The run in the store, as it was before this process works on it, and its record."""
    if given.resume is None:
        path = checked_workspace(given.workspace or Path.cwd(), settings, unsafe=given.unsafe_workspace)
        record = RunRecord(given.verify, planner.label, coder.label)
        return await store.coding.start(OWNER, given.task, str(path), record.as_dict()), record
    await store.processes.interrupt_orphans()
    run = await store.coding.get(OWNER, given.resume)
    if given.workspace is not None and str(given.workspace.expanduser().resolve()) != run.workspace:
        raise InvalidRequest(f"{run.run_id} works in {run.workspace}; leave --workspace out, or start a new run.")
    if run.status == "interrupted":  # whatever becomes of this attempt, what the killed process did last is the run's
        with held_alone(Path(run.workspace)):
            await (await Checkpoints.open(store.coding, run, settings.data_dir)).keep_tail()
    await store.coding.resume(OWNER, given.resume)
    record = RunRecord.from_dict(run.data)
    return run, record.with_options(verify=given.verify, coder=coder.label)
