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

from task.conversation.replies import Answer, typed_answer
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


def card_rows(question: PermissionQuestion) -> dict[str, str]:
    """The card by its labels; nothing in it is hidden, and nothing acts on the terminal."""
    card = question.card
    risk: Mapping[str, str] = card.get("risk_assessment") or {}
    level = plain(str(risk.get("level", ""))).upper()
    rows = {
        "Intent": plain(str(card.get("intent", ""))) or "not given",
        "Command": spelt_out(shortened(str(card.get("command", "")))),
        "Expected": plain(str(card.get("expected_outcome", ""))) or "not given",
        "Risk": f"{level} – {plain(str(risk.get('scope', '')))}".strip(" –"),
        "Details": "\n".join(plain(line) for line in str(risk.get("details", "")).splitlines() if line.strip()),
        "Always": plain(question.grant),
        "Elsewhere": f"approve {plain(question.code)}, or deny it" if question.code else "",
    }
    return {name: text for name, text in rows.items() if text}


def card(question: PermissionQuestion) -> RenderableType:
    """The card in a frame, its border in the colour of the risk."""
    risk: Mapping[str, str] = question.card.get("risk_assessment") or {}
    style = LEVELS.get(str(risk.get("level", "")), "yellow")
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for name, text in card_rows(question).items():
        table.add_row(name, Text(text, style if name == "Risk" else "bold" if name == "Command" else ""))
    name = plain(str(question.request.get("tool_name") or "this"))
    return Panel(
        table, title=Text(f"May I run {name}?", "bold"), title_align="left", border_style=style,
        subtitle=Text("intent and expectation: the model's words", "dim not bold"), subtitle_align="right",
    )  # fmt: skip


def decision(answer: Answer, grant: str) -> Text:
    """The decision as a line."""
    if not answer.allowed:
        return Text(f"✗ Denied{f': {plain(answer.reason)}' if answer.reason else ''}", "red")
    how = (
        "always"
        if answer.always and grant
        else "with changed arguments"
        if answer.arguments is not None
        else "this once"
    )
    return Text(f"✓ Allowed {how}", "green")


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
        raise ValueError(  # noqa: TRY004 - the person's input is wrong, not a type of ours
            'The arguments are a JSON object, such as {"path": "notes.txt"}.'
        )
    return arguments


@dataclass(slots=True)
class Asking:
    """One question at the terminal, until `deadline` or until it is answered elsewhere.

    `line` reads a line below a prompt, with a text to start from, while a condition holds; `show` prints above it.
    """

    question: PermissionQuestion
    deadline: float
    answered_elsewhere: Callable[[], bool]
    line: Callable[[Callable[[], str], str, Callable[[], bool]], str | None]
    show: Callable[[RenderableType], None]
    _ended: str = ""

    def answer(self) -> Answer | None:
        """What the user decided; None: nothing."""
        for part in (Text(), card(self.question), Text(REPLIES, "dim")):
            self.show(part)
        answer = None
        while answer is None:
            line = self._typed("[y/n/a/e]")
            if line is None:
                self.show(Text(self._ended, "yellow"))
                return None
            answer = self._edited() if line.strip().lower() in ("e", "edit") else self._replied(line)
        self.show(decision(answer, self.question.grant))
        return answer

    def _replied(self, line: str) -> Answer | None:
        reply = typed_answer(line)
        if reply is None:
            self.show(Text(REPLIES, "dim"))
        return reply

    def _edited(self) -> Answer | None:
        line: str | None = editable(self.question.request.get("parameters") or {})
        self.show(Text(EDITING, "dim"))
        while (line := self._typed("edit", line)) and line.strip():
            try:
                return Answer(True, arguments=edited(line))
            except ValueError as error:
                self.show(Text(str(error), "red"))
        return None

    def _typed(self, what: str, default: str = "") -> str | None:
        return self.line(lambda: f"{what} ({self._left()}) ", default, self._open)

    def _open(self) -> bool:
        if self.answered_elsewhere():
            self._ended = ELSEWHERE
        elif time.monotonic() >= self.deadline:
            self._ended = EXPIRED
        return not self._ended

    def _left(self) -> str:
        seconds = max(0, round(self.deadline - time.monotonic()))
        return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
