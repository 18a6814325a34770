"""Put waiting calls to a person: as text with their cards, and as a form whose buttons DIAL Chat shows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from task.conversation.messages import Message, Role
from task.conversation.replies import CALLS, CHECKED, CHECKED_TEXT, DECISION, codes_in
from task.permissions.icerc import plain, words
from task.tools.toolbox import Pending

TITLE_CHARS = 80
_OPENING = "**May I do th"
# HTML that would hide what follows it
_HIDING = re.compile(
    r"<(!--|(?:details|iframe|noscript|script|select|style|svg|template|textarea|title|xmp)\b)", re.IGNORECASE
)
_MOST_ENDS = 100
_ADDRESS = re.compile(r":?//|(?<=www)\.", re.IGNORECASE)
_CODED = re.compile(r"approve [a-z][2-9][a-z][2-9]")


def question(pending: Sequence[Pending], codes: Sequence[str], seconds: float, said: str = "") -> str:
    """The cards of all waiting calls as Markdown, and how to answer by their codes within `seconds`.

    `said` is the model's text before it in the answer: HTML that it has left open must not hide the cards.
    """
    if len(pending) == 1:
        text = f"**May I do this?**\n\n{_card(pending[0])}\n{_how_to_answer(pending[0], codes[0], seconds)}"
        return f"{_ends(said)}{text}"
    cards = [_headed(item, code) for item, code in zip(pending, codes, strict=True)]
    opening = f"{_ends(said)}**May I do these {len(pending)} things?**\n"
    return "\n".join([opening, *cards, _how_to_answer_many(codes, seconds)])


def said_in(added: Sequence[Message]) -> str:
    """What the model wrote in the messages of an answer."""
    return "\n".join(message.text() for message in added if message.role is Role.ASSISTANT and message.text())


def label(title: str) -> str:
    """A waiting call's title as plain text in which no chat would recognise an address."""
    return _ADDRESS.sub(r"[\g<0>]", plain(title)[:TITLE_CHARS])


def words_of(message: Message) -> str:
    """The user's text; empty where the message has parts, because an answer is text only."""
    return message.content if message.role is Role.USER and isinstance(message.content, str) else ""


def without_question(text: str) -> str:
    """The model's own text in an answer that ends with a question."""
    own, opening, rest = text.partition(_OPENING)
    return own.rstrip() if opening and _CODED.search(rest) else text


def without_questions(sent: Sequence[Message]) -> list[Message]:
    """The conversation as the session holds it: without questions and answers, the text around them joined."""
    found: list[Message] = []
    asked, before = False, ""

    def add_text() -> None:
        if before:
            found.append(Message(Role.ASSISTANT, before, unsourced=True))

    for message in sent[:-1]:
        if message.role is not Role.ASSISTANT:
            if not (asked and codes_in(words_of(message)) is not None):
                add_text()
                found.append(message)
                before = ""
            asked = False
            continue
        text = message.text()
        own = without_question(text)
        asked, before = own != text, f"{before} {own}".strip()
        if not asked:
            found.append(replace(message, content=before or message.content))
            before = ""
    add_text()
    return [*found, *sent[-1:]]


def form_schema(titles: Sequence[str], codes: Sequence[str]) -> dict[str, Any]:
    """The buttons, with a box to check for each call where there are several; typing a reply stays possible."""
    if len(titles) == 1:
        [code] = codes
        buttons = [
            _button(1, "Approve", f"approve {code}"),
            _always("Always allow", f"always {code}"),
            _button(3, "Deny", f"deny {code}"),
        ]
        asked = f"May I do this? {label(titles[0])}"
        return {"type": "object", "properties": {DECISION: _buttons(asked, buttons)}}
    names = [f"{code} · {label(title)}" for title, code in zip(titles, codes, strict=True)]
    buttons = [
        _button(CHECKED, "Approve the checked ones", CHECKED_TEXT),
        _button(1, "Approve all", "approve"),
        _always("Always allow all", "always"),
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


def _ends(said: str) -> str:
    names = [found[1].lower() for found in _HIDING.finditer(said)][-_MOST_ENDS:]
    ends = "".join("-->" if name == "!--" else f"</{name}>" for name in reversed(names))
    return f"{ends}\n\n" if ends else ""


def _card(item: Pending) -> str:
    because = f"\nI ask because {words(item.reason)}.\n" if item.reason else ""
    return f"{item.card.markdown()}{because}"


def _headed(item: Pending, code: str) -> str:
    # The code comes first, where no title can imitate it.
    return (
        f"#### {code} · {words(item.title)}\n\n{_card(item)}\n*Always* would cover {words(item.grant_description)}.\n"
    )


def _how_to_answer(item: Pending, code: str, seconds: float) -> str:
    return (
        f"Reply **approve {code}** (this once), **always {code}** (also later in this conversation: "
        f"{words(item.grant_description)}) or **deny {code} because …**. Any other reply means no. {_open_for(seconds)}"
    )


def _how_to_answer_many(codes: Sequence[str], seconds: float) -> str:
    choices = ("approve", "always", "deny")[-len(codes) :]
    each = ", ".join(f"{choice} {code}" for choice, code in zip(choices, codes, strict=False))
    return (
        f"Reply **approve {', '.join(codes[:-1])} and {codes[-1]}** (this once), **always** or **deny** with the same "
        f"codes, or decide one by one: **{each} because …**. What you do not approve does not run. {_open_for(seconds)}"
    )


def _open_for(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"The question is open for {minutes} minute{'s' if minutes > 1 else ''}."


def _buttons(description: str, buttons: Sequence[dict[str, Any]]) -> dict[str, Any]:
    # DIAL Chat knows buttons with numbers for values only.
    return {"type": "number", "description": description, "dial:widget": "buttons", "oneOf": list(buttons)}


def _button(number: int, title: str, text: str) -> dict[str, Any]:
    return {"const": number, "title": title, "dial:widgetOptions": {"populateText": text, "submit": True}}


def _always(title: str, text: str) -> dict[str, Any]:
    button = _button(2, title, text)
    sure = "From now on this runs in this conversation without asking. /permissions revokes it."
    button["dial:widgetOptions"]["confirmationMessage"] = sure
    return button
