"""Put waiting calls to a person: as text with their cards, and as a form whose buttons DIAL Chat shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from task.conversation.replies import CALLS, CHECKED, CHECKED_TEXT, DECISION
from task.permissions.icerc import visible, words
from task.tools.toolbox import Pending

TITLE_CHARS = 80


def question(pending: Sequence[Pending], seconds: float) -> str:
    """The cards of all waiting calls as Markdown, and how to answer within `seconds`."""
    if len(pending) == 1:
        return f"**May I do this?**\n\n{_card(pending[0])}\n{_how_to_answer(pending[0], seconds)}"
    cards = [f"#### {number}. {words(item.title)}\n\n{_card(item)}" for number, item in enumerate(pending, 1)]
    return "\n".join([f"**May I do these {len(pending)} things?**\n", *cards, _how_to_answer_many(seconds)])


def form_schema(titles: Sequence[str]) -> dict[str, Any]:
    """The buttons, with a box to check for each call where there are several; typing a reply stays possible."""
    if len(titles) == 1:
        buttons = [_button(1, "Approve", "approve"), _always("Always allow"), _button(3, "Deny", "deny")]
        return {"type": "object", "properties": {DECISION: _buttons("May I do this?", buttons)}}
    names = [f"{number}. {visible(title)[:TITLE_CHARS]}" for number, title in enumerate(titles, 1)]
    buttons = [
        _button(CHECKED, "Approve the checked ones", CHECKED_TEXT),
        _button(1, "Approve all", "approve"),
        _always("Always allow all"),
        _button(3, "Deny all", "deny"),
    ]
    checks = {
        "type": "array",
        "title": "What may run",
        "description": "Check what may run",
        "uniqueItems": True,
        "items": {"$ref": "#/definitions/calls"},
    }
    return {
        "type": "object",
        "definitions": {"calls": {"enum": [str(number) for number in range(1, len(names) + 1)], "enumNames": names}},
        "properties": {CALLS: checks, DECISION: _buttons("May I do these?", buttons)},
    }


def _card(item: Pending) -> str:
    because = f"\nI ask because {words(item.reason)}.\n" if item.reason else ""
    return f"{item.card.markdown()}{because}"


def _how_to_answer(item: Pending, seconds: float) -> str:
    return (
        f"Reply **approve** (this once), **always** (also later in this conversation: "
        f"{words(item.grant_description)}), or **deny because …**. Any other reply means no. {_open_for(seconds)}"
    )


def _how_to_answer_many(seconds: float) -> str:
    return (
        "Reply **approve**, **always** or **deny because …** for all of them, or one by one: "
        "**approve 1, always 2, deny 3 because …**. What you do not approve does not run. " + _open_for(seconds)
    )


def _open_for(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"The question is open for {minutes} minute{'s' if minutes > 1 else ''}."


def _buttons(description: str, buttons: Sequence[dict[str, Any]]) -> dict[str, Any]:
    # DIAL Chat knows buttons with numbers for values only.
    return {"type": "number", "description": description, "dial:widget": "buttons", "oneOf": list(buttons)}


def _button(number: int, title: str, text: str) -> dict[str, Any]:
    return {"const": number, "title": title, "dial:widgetOptions": {"populateText": text, "submit": True}}


def _always(title: str) -> dict[str, Any]:
    button = _button(2, title, "always")
    sure = "From now on this runs in this conversation without a question. /permissions takes it back."
    button["dial:widgetOptions"]["confirmationMessage"] = sure
    return button
