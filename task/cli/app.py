"""`dial-agent`: its commands by name, each in a module of its own, and how what they raise becomes an exit code."""

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer import core as drawing
from typer.core import TyperCommand, TyperGroup

from task.cli import MEANINGS, Exit
from task.errors import InvalidRequest, SettingsError, StoreUnavailable, StoreVersionError

drawing.HAS_RICH = False  # pyright: ignore[reportConstantRedefinition] - rich would take longer than all the rest
DISTRIBUTION = "dial-general-purpose-agent"
COMMANDS: Mapping[str, tuple[str, str]] = {  # the module and its application, and what the command does
    "up": ("up:app", "Run the whole local product until Ctrl-C: local DIAL Core, agent, model."),
    "serve": ("workers:app", "Run the agent alone, in as many processes as AGENT_WORKERS names."),
    "core": ("core:app", "Run local Core alone: keys, files, applications and models of DIAL without an account."),
    "duckduckgo": ("companions:search", "Run the search server alone: web search and the text of pages, over MCP."),
    "python-interpreter": ("companions:interpreter", "Run the Python interpreter alone: sandboxed kernels, over MCP."),
    "ask": ("ask:app", "Ask one question: the answer goes to standard output, the steps to standard error."),
    "chat": ("chat:app", "Chat at the terminal: the agent with the files of the working directory."),
    "acp": ("acp:app", "Serve an editor that speaks the Agent Client Protocol, on the standard streams."),
    "run": ("run:app", "Plan a coding task; with --apply, carry the plan out in a folder and verify it."),
    "tasks": ("tasks:app", "List and show coding tasks, resume one, take one back."),
    "runs": ("tasks:app", ""),  # the documented name of `tasks`
    "traces": ("traces:app", "List, show, export, replay and compare what runs did."),
    "tools": ("tools:app", "List the agent's tools: name, effects, description."),
    "doctor": ("doctor:app", "Check settings, ports, Core, model, tools, sandbox, and say how to fix what is wrong."),
    "core-config": ("core_config:app", "Print the configuration for a real DIAL Core, with the environment's values."),
    "init": ("init:app", "Write the configuration files for Docker Compose, Kubernetes or DIAL Core into a folder."),
    "keys": ("store:keys", "Create, list and revoke keys of the HTTP API."),
    "store": ("store:app", "Back up, restore, migrate and check the store."),
    "model": ("model:app", "Download, list and remove the small model that runs on this machine."),
}


class Imported(TyperCommand):
    """A command whose module is imported once it is meant: `--help` and the other commands do without."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        module, _, name = COMMANDS[str(self.name)][0].partition(":")
        meant = typer.main.get_command(getattr(import_module(f"task.cli.{module}"), name))
        meant.help = self.help or meant.help
        for command in meant.commands.values() if isinstance(meant, TyperGroup) else ():
            command.short_help = (command.help or "").partition("\n\n")[0]  # or click would cut it to a line
        return meant.make_context(info_name, args, parent, **extra)


class CommandTable(TyperGroup):
    """The commands of the table."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        _, text = COMMANDS[cmd_name]
        return Imported(cmd_name, help=text, short_help=text, hidden=not text)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(f"{code:d}", meaning) for code, meaning in MEANINGS.items()])


app = typer.Typer(
    cls=CommandTable,
    help="A general purpose agent for DIAL.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        from task.cli.options import write

        write(f"dial-agent {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the command itself."""


def main() -> None:
    """Run the command line; a wrong setting, request or store is one line on standard error and exit code 2."""
    try:
        app()
    except (SettingsError, InvalidRequest, StoreVersionError, StoreUnavailable) as error:
        from task.cli.options import write

        write(error, err=True)
        is_usage = isinstance(error, StoreVersionError) or not isinstance(error, StoreUnavailable)
        sys.exit(Exit.USAGE if is_usage else Exit.FAILED)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
