"""What `dial-agent up` prints: the table of what runs, and the lines of its processes, each with its process's name."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.box import ROUNDED
from rich.console import Console
from rich.table import Table
from rich.text import Text

from task.commands.model_choice import ChosenModel

LOG_WIDTH = 120
COLOURS = ("cyan", "magenta", "yellow", "green", "blue")
QUESTION = 'ask "What is the top sale for category A?" --file report.csv'
ROUTE = "/openai/deployments/general-purpose-agent/chat/completions"
REGISTER = "`dial-agent core-config` prints what to add to its configuration; `dial-agent doctor` checks it."
LABELS = {
    "demo": " (a demo, not a real model)",
    "local": " (a small model on this machine: for trying the product, not for judging it)",
}
NO_MODEL = (
    "A real model. Set OPENAI_API_KEY (and OPENAI_BASE_URL for another provider), or start Ollama with a model, "
    "or set DIAL_ENDPOINT and DIAL_API_KEY for a real DIAL Core, or get a small one for this machine with "
    "`dial-agent model pull`; then start again."
)


class LogConsole(Console):
    """A terminal or a log; when nobody reads it any more, this process gets the signal to end."""

    def __init__(self) -> None:
        super().__init__(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH)

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        os.kill(os.getpid(), signal.SIGTERM)


class PrefixedLines:
    """Writes `name │ line`; the name keeps its colour and its width, and a pipe gets the same without colour."""

    def __init__(self, console: Console, names: Sequence[str]) -> None:
        self._console = console
        self._width = max(map(len, names), default=0)
        self._colours = {name: COLOURS[position % len(COLOURS)] for position, name in enumerate(names)}

    def __call__(self, name: str, line: str) -> None:
        prefix = (f"{name:<{self._width}} │ ", self._colours.get(name, "bold"))
        self._console.print(Text.assemble(prefix, Text.from_ansi(line)), soft_wrap=True)


def overview(
    agent_url: str,
    core_url: str,
    model: ChosenModel,
    tools: list[str] | None,
    ready_seconds: float,
    companions: Sequence[tuple[str, str]] = (),
    *,
    page: bool = True,
) -> Table:
    """The table that is printed once; `companions` are names and addresses, `page` says that there is a web page."""
    table = Table(box=ROUNDED, show_header=False, title=f"Ready in {ready_seconds:.1f} s", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    if page:
        table.add_row("Web page", f"{agent_url}/")
    table.add_row("Agent", f"{agent_url}\n{agent_url}{ROUTE}")
    table.add_row("DIAL Core", core_url if model.rule == "dial" else f"{core_url} (local, no account needed)")
    for name, url in companions:
        table.add_row(name, url)
    table.add_row("Model", Text(f"{model.name}{LABELS.get(model.rule, '')}\nbecause {model.reason}"))
    names = "could not be listed; `dial-agent tools` says why" if tools is None else ", ".join(tools)
    table.add_row("Tools", Text(names))
    if model.rule == "demo":
        table.add_row("Missing", Text(NO_MODEL))
    if model.rule == "dial":
        table.add_row("Needed", Text(f"{core_url} must know this agent: {REGISTER}"))
    table.add_row("Stop", "Ctrl-C")
    return table


def example(core_url: str, model: ChosenModel) -> str:
    """A command to try; it is printed below the table, which would wrap it so that it cannot be copied."""
    usual = model.rule == "dial" or core_url == "http://127.0.0.1:8080"
    return f"{_command()} {QUESTION}" if usual else f"{_command()} {QUESTION} --endpoint {core_url}"


def _command() -> str:
    beside = Path(sys.executable).with_name("dial-agent")
    if shutil.which("dial-agent") or not beside.exists():
        return "dial-agent"
    return shlex.quote(os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside))
