"""Plan a coding task, and with `--apply` carry it out in a workspace: its models, its output, and an exit code."""

import asyncio
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from task.cli import Exit
from task.cli.addresses import core_address, is_local, key_for
from task.cli.model_choice import choose_model, chosen_of_ollama
from task.cli.options import Config, JsonLines, agrees_to_skills, read_settings
from task.coding.checkpoints import Checkpoints
from task.coding.executor import deny_all
from task.coding.report import TerminalOutput, print_json_line
from task.coding.run import ModelAccess, Work
from task.coding.settings import DEFAULT_BACKEND, backend_and_model, documented, model_tree
from task.coding.state import TaskState, task_of
from task.errors import InvalidRequest, SettingsError
from task.product import opened
from task.product.backends import BACKENDS
from task.product.parts import command_limits
from task.product.skills import workspace_skills
from task.runs.events import TASK_STATUSES, TaskResult
from task.runs.request import RunCaller
from task.settings import Settings
from task.tools.workspace.bounds import PROGRAM, refusal
from task.tools.workspace.commands import Commands
from task.tools.workspace.root import Workspace

NO_MODEL = (
    "No model is connected that could plan and write code: set CODER_MODEL and PLANNER_MODEL (such as openai:gpt-4o "
    "with OPENAI_API_KEY), run Ollama, or start the product with `dial-agent up`."
)
NO_KEY = (
    "OLLAMA_API_KEY is not set, and the planner {model} is at {host}. Set the key, set TURBO_HOST to an Ollama without "
    "one, or name a model of another backend as PLANNER_MODEL, such as openai:gpt-4o."
)
PRODUCTS = {"ollama": "Ollama", "openai": "OpenAI API", "dial": "DIAL Core", "dapr": "Dapr"}
app = typer.Typer(add_completion=False)
UnsafeNoSandbox = Annotated[
    bool, typer.Option("--unsafe-no-sandbox", help="Run commands even where no sandbox can confine them.")
]
UnsafeWorkspace = Annotated[
    bool, typer.Option("--unsafe-workspace", help="Work even in your home, or in all of the machine.")
]
OWNER = "local"  # as the HTTP API without keys calls every user of this machine
EXITS: Mapping[TaskResult, Exit] = {  # all others have failed
    **{result: Exit.DONE for result, status in TASK_STATUSES.items() if status == "finished"},
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


@app.command()
def plan_or_carry_out(
    task: Annotated[str, typer.Argument(help="What to do; `-` reads it from standard input.")] = "",
    apply: Annotated[bool, typer.Option("--apply", help="Carry the plan out; without it nothing is changed.")] = False,
    planner_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Model that plans: of Ollama, or backend:model.")
    ] = None,
    coder_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Model that carries the plan out: of Ollama, or backend:model.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option(min=1, max=1000, help="Model requests with tools.")] = None,
    workspace: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder to work in instead of the working directory.")
    ] = None,
    setup: Annotated[
        str | None, typer.Option(metavar="CMD", help="Prepare the workspace with this command, which has a network.")
    ] = None,
    verify: Annotated[
        str | None, typer.Option(metavar="CMD", help="Verify with this command instead of the plan's tests.")
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Approve --setup and what the coding rules leave to the user.")
    ] = False,
    as_json: JsonLines = False,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Continue this run instead of a new task.")] = None,
    unsafe_no_sandbox: UnsafeNoSandbox = False,
    unsafe_workspace: UnsafeWorkspace = False,
    config: Config = None,
) -> None:
    """Plan a coding task; with --apply, carry the plan out in a folder and verify it."""
    text = sys.stdin.read() if task == "-" else task
    settings = read_settings(config, planner_model=planner_model, coder_model=coder_model, max_steps=max_steps)
    given = RunArguments(
        text, apply, workspace, setup, verify, yes, as_json, resume, unsafe_no_sandbox, unsafe_workspace
    )
    raise typer.Exit(run(settings, given))


def run(settings: Settings, given: RunArguments) -> int:
    """Plan, carry out, verify; the exit code says how it ended.

    Raises:
        InvalidRequest: no task, one that is not UTF-8, or a workspace that cannot be used.
        SettingsError: no model, or a key is missing.
        StoreUnavailable: the run cannot be recorded.
    """
    if bool(given.task.strip()) is (given.resume is not None):
        raise InvalidRequest("Write a task in quotes after `run`, or name a run with --resume: one of the two.")
    folder = given.workspace or Path.cwd()
    texts = {"The task": given.task or None, "--setup": given.setup, "--verify": given.verify}
    for name, text in {**texts, "--workspace": str(folder)}.items():
        try:
            (text or "").encode()
        except UnicodeEncodeError:  # the store and the models take nothing else
            raise InvalidRequest(f"{name} is not UTF-8 text.") from None
        if text is not None and not text.strip():  # an empty command succeeds, and would verify everything
            raise InvalidRequest(f"{name} is empty; leave it out.")
    unsafe, is_new = given.unsafe_workspace, given.resume is None
    folder = checked_workspace(folder, settings, unsafe=unsafe) if is_new else folder.expanduser().resolve()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal may not have every character
    try:
        return asyncio.run(_run(settings, given, folder))
    except asyncio.CancelledError:  # SIGTERM before the run has begun
        return Exit.INTERRUPTED


def checked_workspace(path: Path, settings: Settings, *, unsafe: bool) -> Path:
    """The real path of a workspace.

    Raises:
        InvalidRequest: it is not a folder, or one in which a run could reach more than a project.
    """
    try:
        found = path.expanduser().resolve()
    except (OSError, RuntimeError) as error:
        raise InvalidRequest(f"--workspace {path} cannot be used: {error}.") from error
    if reason := refusal(found, (settings.data_dir, settings.cache_dir), wide=unsafe):
        raise InvalidRequest(f"--workspace: {reason}. Choose another; --unsafe-workspace permits a wide one.")
    return found


async def _run(settings: Settings, given: RunArguments, folder: Path) -> int:
    current, output = asyncio.current_task(), TerminalOutput()
    assert current is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, current.cancel)
    planner, coder = await coding_models(settings, OWNER)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(coder.services.close)
        stack.push_async_callback(planner.services.close)
        store = await coder.services.store.get()
        if given.resume is None:
            task = TaskState(await store.runs.start(OWNER, folder=str(folder)), given.task)
            checkpoints = await Checkpoints.open(store, task, settings.data_dir)
        else:
            await store.processes.interrupt_orphans()
            task = await task_of(store, OWNER, given.resume)
            if given.workspace is not None and folder != task.workspace:
                raise InvalidRequest(f"{given.resume} works in {task.workspace}; leave --workspace out.")
            checked_workspace(task.workspace, settings, unsafe=given.unsafe_workspace)
            checkpoints = await Checkpoints.open(store, task, settings.data_dir)
            await checkpoints.resume(task)
        workspace = stack.enter_context(Workspace(task.workspace))
        limits, unsafe = command_limits(settings), given.unsafe_no_sandbox
        commands = await stack.enter_async_context(Commands(workspace, limits, unsafe=unsafe, gated=True))
        ask = agrees_to_skills if sys.stdin.isatty() and not given.as_json else None
        skills = (*coder.profile.skills, *workspace_skills(settings, task.workspace, ask))
        coder = replace(coder, profile=replace(coder.profile, skills=skills))
        work = Work(
            task,
            checkpoints,
            commands,
            planner,
            coder,
            print_json_line if given.as_json else output.show,
            deny_all if given.as_json else output.ask,
            apply=given.apply and not settings.dry_run,
            setup=given.setup,
            verify=given.verify or task.verify,
            yes=given.yes,
            steps=settings.max_steps,
            notes=tuple(_notes(settings, given, commands)),
        )
        return EXITS.get((await work.carry_out()).result, Exit.FAILED)


def _notes(settings: Settings, given: RunArguments, commands: Commands) -> Iterator[str]:
    if own := refusal(commands.workspace.path, PROGRAM):
        yield f"{own}: what the run changes there runs with your rights from then on."
    if given.setup is not None and not given.apply:
        yield "--setup runs with --apply only, and is not kept with the plan: give it again then."
    if given.apply and settings.dry_run:
        yield "DRY_RUN is set: nothing is changed, whatever --apply says."
    elif given.apply and (missing := commands.available):
        yield missing
    elif given.apply and not commands.confined:
        yield "Commands run without a sandbox: they can read and change all that you can."


async def coding_models(settings: Settings, owner: str) -> tuple[ModelAccess, ModelAccess]:
    """The planner's and the coder's model.

    Without a coder of the settings it is the documented one where Ollama has it, else the local product's model.

    Raises:
        SettingsError: there is no model, or a key is missing; one line with the fix.
    """
    given = documented(settings)
    planner_model, coder_model = given.planner_model, given.coder_model
    if "coder_model" not in settings.model_fields_set:
        ollama = await chosen_of_ollama(settings.model_copy(update={"deployment_name": settings.coder_model}))
        chosen = ollama if ollama is not None and ollama.ollama is not None else await choose_model(settings)
        if chosen.rule == "demo":
            raise SettingsError(NO_MODEL)
        coder_model = f"{chosen.backend or 'dial'}:{chosen.name}"
    chosen_host = "turbo_host" in settings.model_fields_set or is_local(settings.turbo_host)
    has_planner = chosen_host or settings.ollama_api_key is not None
    if backend_and_model(planner_model)[0] == DEFAULT_BACKEND and not has_planner:
        if "planner_model" in settings.model_fields_set:
            raise SettingsError(NO_KEY.format(model=planner_model, host=settings.turbo_host))
        # Nothing is set up for planning: the coder's model plans too.
        planner_model, given = coder_model, replace(given, turbo_host=given.local_host)
    planner = model_tree(given, planner_model, given.turbo_host, settings)
    coder = model_tree(given, coder_model, given.local_host, settings)
    return _access(planner, settings, owner), _access(coder, settings, owner)


def _access(tree: Settings, settings: Settings, owner: str) -> ModelAccess:
    key = ""
    if BACKENDS[tree.backend].of_core:
        address = core_address(settings)
        key, tree = key_for(settings, address), tree.model_copy(update={"dial_endpoint": address})
    services, profile = opened(tree, tools=(), read_seconds=settings.request_timeout_s)
    host = urlsplit(profile.backend.address).netloc or profile.backend.address
    label = f"{tree.deployment_name} ({PRODUCTS[tree.backend]} at {host})"
    return ModelAccess(services, profile, RunCaller(owner, key).of_tools(), label)
