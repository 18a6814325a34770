"""The card of a call that asks for permission, the replies to it, and how they are asked for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from task.conversation.inputs import Answer, typed_answer
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


def ask_for_permission(
    question: PermissionQuestion,
    deadline: float,
    answered_elsewhere: Callable[[], bool],
    line: Callable[[Callable[[], str], str, Callable[[], bool]], str | None],
    show: Callable[[RenderableType], None],
) -> Answer | None:
    """What the user decides until `deadline`, or until it is answered elsewhere; None: nothing.

    `line` reads a line below a prompt, with a text to start from, while a condition holds; `show` prints above it.
    """
    ended = ""

    def is_open() -> bool:
        nonlocal ended
        ended = ELSEWHERE if answered_elsewhere() else EXPIRED if time.monotonic() >= deadline else ended
        return not ended

    def typed(what: str, default: str = "") -> str | None:
        def prompt() -> str:
            seconds = max(0, round(deadline - time.monotonic()))
            return f"{what} ({f'{seconds} s' if seconds < 120 else f'{seconds // 60} min'}) "

        return line(prompt, default, is_open)

    def with_changes() -> Answer | None:
        text: str | None = editable(question.request.get("parameters") or {})
        show(Text(EDITING, "dim"))
        while (text := typed("edit", text)) and text.strip():
            try:
                return Answer(True, arguments=edited(text))
            except ValueError as error:
                show(Text(str(error), "red"))
        return None

    for part in (Text(), card(question), Text(REPLIES, "dim")):
        show(part)
    while (reply := typed("[y/n/a/e]")) is not None:
        wants_changes = reply.strip().lower() in ("e", "edit")
        answer = with_changes() if wants_changes else typed_answer(reply)
        if answer is not None:
            show(decision(answer, question.grant))
            return answer
        if not wants_changes:
            show(Text(REPLIES, "dim"))
    show(Text(ended, "yellow"))
    return None
