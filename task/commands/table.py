"""What `dial-agent up` prints once it is ready: addresses, model, tools, what is missing, and a command to try."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.box import ROUNDED
from rich.table import Table
from rich.text import Text

from task.commands.model_choice import ChosenModel

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
    """The table that `dial-agent up` prints once; `companions` are names and addresses, `page` is the web page."""
    table = Table(box=ROUNDED, show_header=False, title=f"Ready in {ready_seconds:.1f} s", title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    if page:
        table.add_row("Web page", f"{agent_url}/")
    table.add_row("Agent", f"{agent_url}\n{agent_url}{ROUTE}")
    table.add_row("DIAL Core", core_url if model.rule == "dial" else f"{core_url} (local, no account needed)")
    for name, url in companions:
        table.add_row(name, url)
    label = LABELS.get(model.rule, "")
    table.add_row("Model", Text(f"{model.name}{label}\nbecause {model.reason}"))
    table.add_row("Tools", Text(_names(tools)))
    if model.rule == "demo":
        table.add_row("Missing", Text(NO_MODEL))
    if model.rule == "dial":
        table.add_row("Needed", Text(f"{core_url} must know this agent: {REGISTER}"))
    table.add_row("Stop", "Ctrl-C")
    return table


def _names(tools: list[str] | None) -> str:
    if tools is None:
        return "could not be listed; `dial-agent tools` says why"
    return ", ".join(tools)


def example(core_url: str, model: ChosenModel) -> str:
    """A command to try; it is printed below the table, which would wrap it so that it cannot be copied."""
    usual = model.rule == "dial" or core_url == "http://127.0.0.1:8080"
    return f"{_command()} {QUESTION}" if usual else f"{_command()} {QUESTION} --endpoint {core_url}"


def _command() -> str:
    beside = Path(sys.executable).with_name("dial-agent")
    if shutil.which("dial-agent") or not beside.exists():
        return "dial-agent"
    return shlex.quote(os.path.relpath(beside) if beside.is_relative_to(Path.cwd()) else str(beside))
