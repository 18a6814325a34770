"""The card of a call that asks for permission, and the words around its answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from task.conversation.inputs import Answer
from task.permissions.icerc import plain, shortened, spelt_out, visible

LEVELS = {"low": "green", "medium": "yellow", "high": "bold red"}
EXPIRED = "No answer in time: it does not run."
ELSEWHERE = "Answered elsewhere."
EDITING = "JSON, Enter allows the call with it, an empty text goes back"
REPLIES = "y yes · n no, with a reason if you like · a always · e edit the arguments"


@dataclass(frozen=True, slots=True)
class PermissionQuestion:
    """May this call run? `card` is the ICERC card, `code` answers it anywhere, `grant` is what "always" would allow."""

    request: Mapping[str, Any]
    card: Mapping[str, Any]
    code: str = ""
    grant: str = ""


def card(question: PermissionQuestion) -> RenderableType:
    """The card in a frame, its border in the colour of the risk; nothing is hidden, nothing acts on the terminal."""
    shown = question.card
    risk: Mapping[str, str] = shown.get("risk_assessment") or {}
    level = str(risk.get("level", ""))
    rows = {
        "Intent": plain(str(shown.get("intent", ""))) or "not given",
        "Command": spelt_out(shortened(str(shown.get("command", "")))),
        "Expected": plain(str(shown.get("expected_outcome", ""))) or "not given",
        "Risk": f"{plain(level).upper()} – {plain(str(risk.get('scope', '')))}".strip(" –"),
        "Details": "\n".join(plain(line) for line in str(risk.get("details", "")).splitlines() if line.strip()),
        "Always": plain(question.grant),
        "Elsewhere": f"approve {plain(question.code)}, or deny it" if question.code else "",
    }
    style = LEVELS.get(level, "yellow")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for name, text in rows.items():
        if text:
            table.add_row(name, Text(text, style if name == "Risk" else "bold" if name == "Command" else ""))
    title = Text(f"May I run {plain(str(question.request.get('tool_name') or 'this'))}?", "bold")
    note = Text("intent and expectation: the model's words", "dim not bold")
    return Panel(table, title=title, title_align="left", border_style=style, subtitle=note, subtitle_align="right")


def decision(answer: Answer, grant: str) -> Text:
    """The decision as a line."""
    if not answer.allowed:
        return Text(f"✗ Denied{f': {plain(answer.reason)}' if answer.reason else ''}", "red")
    once = "with changed arguments" if answer.arguments is not None else "this once"
    return Text(f"✓ Allowed {'always' if answer.always and grant else once}", "green")


def editable(arguments: Mapping[str, Any]) -> str:
    """The arguments as JSON to be edited; characters that cannot be seen are escaped."""
    text = json.dumps(arguments, indent=2, ensure_ascii=False, default=str)
    return text if visible(text) == text else json.dumps(arguments, indent=2, default=str)


def edited(text: str) -> dict[str, Any]:
    """The arguments as they were edited.

    Raises:
        ValueError: what is wrong with them.
    """
    try:
        arguments = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"This is not JSON: {error.msg}, line {error.lineno}, column {error.colno}.") from error
    except RecursionError as error:
        raise ValueError("This JSON is nested too deeply.") from error
    if not isinstance(arguments, dict):
        example = '{"path": "notes.txt"}'
        raise ValueError(f"The arguments are a JSON object, such as {example}.")  # noqa: TRY004 - the input is wrong
    return arguments
