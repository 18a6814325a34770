"""`dial-agent`: read the settings, hand over to the command, turn what it raises into a line and an exit code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from task.cli import MEANINGS, Exit
from task.cli.store import Config, JsonLines, keys, read_settings
from task.cli.store import app as store
from task.cli.tasks import UnsafeNoSandbox, UnsafeWorkspace
from task.cli.tasks import app as tasks
from task.cli.traces import app as traces
from task.errors import InvalidRequest, SettingsError, StoreUnavailable, StoreVersionError

DISTRIBUTION = "dial-general-purpose-agent"

app = typer.Typer(
    help="A general purpose agent for DIAL.",
    epilog="\n\n".join(["Exit codes:", *(f"{code:3}  {meaning}" for code, meaning in MEANINGS.items())]),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(traces, name="traces")
app.add_typer(tasks, name="tasks")
app.add_typer(tasks, name="runs", hidden=True)  # its documented name
app.add_typer(keys, name="keys")
app.add_typer(store, name="store")

Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
LoopbackHost = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the agent.")]
ServerPort = Annotated[int | None, typer.Option(min=0, max=65535, help="Port of the server.")]
CorePort = Annotated[int | None, typer.Option("--core-port", min=0, max=65535, help="Port of local Core.")]
OwnPort = Annotated[int | None, typer.Option("--port", "--core-port", min=0, max=65535, help="Port of local Core.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"dial-agent {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command()
def up(
    config: Config = None,
    port: Port = None,
    core_port: CorePort = None,
    ready_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write addresses and process ids to it as JSON once everything is ready."),
    ] = None,
) -> None:
    """Run the whole local product until Ctrl-C: local DIAL Core, agent, model."""
    from task.cli.up import run

    settings = read_settings(config, port=port, core_port=core_port)
    raise typer.Exit(run(settings, config, ready_file))


model_app = typer.Typer(help="Download, list and remove the small model that runs on this machine.")
app.add_typer(model_app, name="model", no_args_is_help=True)


@model_app.command()
def pull(config: Config = None) -> None:
    """Download the model and the program that runs it; an interrupted download is resumed."""
    from task.cli.model import run_pull

    raise typer.Exit(run_pull(read_settings(config)))


@model_app.command("list")
def list_models(config: Config = None) -> None:
    """List each model with its size and whether it is downloaded."""
    from task.cli.model import run_list

    raise typer.Exit(run_list(read_settings(config)))


@model_app.command()
def remove(config: Config = None) -> None:
    """Delete downloaded models."""
    from task.cli.model import run_remove

    raise typer.Exit(run_remove(read_settings(config)))


@app.command()
def embedding(config: Config = None) -> None:
    """Install what search in documents needs: the embedding model and its libraries; `up` does it in the background."""
    from task.cli.model import install_embedding

    raise typer.Exit(install_embedding(read_settings(config)))


@app.command()
def serve(
    config: Config = None,
    host: Host = None,
    port: Port = None,
    worker: Annotated[str | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the agent alone, in as many processes as AGENT_WORKERS names."""
    import gc

    from task.cli.addresses import usable_port

    settings = read_settings(config, host=host, port=port)
    if worker is not None:
        from task.cli.workers import become_worker

        gc.disable()
        become_worker(settings, worker)
        return
    if settings.workers > 1:
        from task.cli.workers import run as run_workers

        raise typer.Exit(run_workers(settings, config))
    usable_port(settings.host, settings.port, "--port", "AGENT_PORT")
    gc.disable()  # until the server has loaded everything, which stays for good
    from task.server import run

    run(settings)


@app.command()
def core(config: Config = None, port: OwnPort = None) -> None:
    """Run local Core alone: keys, files, applications and models of DIAL without an account."""
    from task.cli.core import run

    run(read_settings(config, core_port=port))


@app.command()
def duckduckgo(config: Config = None, host: LoopbackHost = "127.0.0.1", port: ServerPort = None) -> None:
    """Run the search server alone: web search and the text of pages, over MCP."""
    from task.cli.companions import become_search_server

    become_search_server(read_settings(config), host, port)


@app.command()
def python_interpreter(
    config: Config = None,
    host: LoopbackHost = "127.0.0.1",
    port: ServerPort = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Additional host name that callers may use; may be repeated."),
    ] = None,
) -> None:
    """Run the Python interpreter alone: one sandboxed kernel per conversation, over MCP."""
    from task.cli.companions import become_interpreter

    become_interpreter(read_settings(config), host, port, allowed_host or [])


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="The question; `-` reads it from standard input.")],
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            "-f",
            exists=True,
            dir_okay=False,
            readable=True,
            metavar="FILE",
            help="File to attach; may be repeated.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="Deployment to ask.")] = "general-purpose-agent",
    save: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Save the answer's files there.")] = None,
    endpoint: Annotated[str | None, typer.Option(metavar="URL", help="DIAL Core to ask.")] = None,
    as_json: JsonLines = False,
    config: Config = None,
) -> None:
    """Ask one question: the answer goes to standard output, the steps to standard error."""
    from task.cli.ask import Question, run

    text = sys.stdin.read() if question == "-" else question
    asked = Question(text, tuple(file or ()), model, save, as_json)
    settings = read_settings(config, dial_endpoint=endpoint or None)
    raise typer.Exit(run(settings, asked))


@app.command()
def chat(
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", metavar="TEXT", help="Ask this, print the answer, and end.")
    ] = None,
    resume: Annotated[str | None, typer.Option(metavar="SESSION", help="Continue this conversation.")] = None,
    as_json: JsonLines = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show requests and the details of errors.")] = False,
    config: Config = None,
) -> None:
    """Chat at the terminal: the agent with the files of the working directory."""
    from task.cli.chat import run

    raise typer.Exit(run(config, prompt, resume, as_json=as_json, debug=debug))


@app.command()
def run(
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
    from task.cli.run import RunArguments
    from task.cli.run import run as carry_out

    text = sys.stdin.read() if task == "-" else task
    settings = read_settings(
        config, workspace or Path.cwd(), planner_model=planner_model, coder_model=coder_model, max_steps=max_steps
    )
    given = RunArguments(
        text, apply, workspace, setup, verify, yes, as_json, resume, unsafe_no_sandbox, unsafe_workspace
    )
    raise typer.Exit(carry_out(settings, given))


@app.command()
def doctor(
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="The rows as one JSON array.")] = False,
    sandbox: Annotated[
        bool, typer.Option("--sandbox", help="Try ten ways out of the sandbox, and print the results.")
    ] = False,
) -> None:
    """Check settings, ports, Core, model, tools and sandbox, and say how to fix what is wrong."""
    from task.cli.doctor import run, try_escapes

    raise typer.Exit(try_escapes(as_json) if sandbox else run(config, as_json))


@app.command()
def tools(
    config: Config = None,
    as_json: Annotated[bool, typer.Option("--json", help="The tools as one JSON array.")] = False,
    form: Annotated[
        Literal["openai", "ollama", "dapr", "mcp"] | None,
        typer.Option("--format", help="The tools' schemas as one JSON array in this format."),
    ] = None,
) -> None:
    """List the agent's tools: name, effects, description."""
    from task.cli.tools import show, show_schemas

    if form is not None:
        show_schemas(read_settings(config), form)
    else:
        show(read_settings(config), as_json)


@app.command()
def core_config(
    template: Annotated[Path | None, typer.Argument(help="Configuration to use instead of the product's own.")] = None,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Write to this file instead of printing.")] = None,
    mode: Annotated[
        str, typer.Option(metavar="OCTAL", help="Permissions of the written file, which contains keys.")
    ] = "600",
    fragment: Annotated[
        bool,
        typer.Option("--fragment", help="Only what an existing Core needs: the application, and its roles' limits."),
    ] = False,
    agent: Annotated[str | None, typer.Option(metavar="URL", help="Where that Core reaches this agent.")] = None,
    core_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help="Leave out what a Core of this version does not know.")
    ] = None,
) -> None:
    """Print the configuration for a real DIAL Core, with values from the environment."""
    from task.cli.core_config import NEWEST, parsed_version, print_config, print_fragment

    if agent is not None and not agent.startswith(("http://", "https://")):
        raise typer.BadParameter("takes an address such as http://host:5030", param_hint="--agent")
    try:
        version = parsed_version(core_version) if core_version else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--core-version") from None
    if fragment:
        print_fragment(read_settings(None), template, agent, output, version)
        return
    try:
        bits = int(mode, 8)
    except ValueError:
        raise typer.BadParameter(f"{mode!r} is not an octal file mode such as 644", param_hint="--mode") from None
    print_config(template, output, bits, agent, version or NEWEST)


def main() -> None:
    """Run the command line; a wrong setting, request or store is one line on standard error and exit code 2."""
    try:
        app()
    except (SettingsError, InvalidRequest, StoreVersionError) as error:
        print(error, file=sys.stderr)
        sys.exit(Exit.USAGE)
    except StoreUnavailable as error:
        print(error, file=sys.stderr)
        sys.exit(Exit.FAILED)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
