"""The buttons of questions and lists: what a form shows, and what a pressed button decides."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from task.conversation.inputs import Answer, Choice
from task.permissions.gate import Grant
from task.permissions.icerc import plain
from task.tools.toolbox import Pending

BUTTON = "button"  # the field of a message's form; DIAL Chat 1.x shows buttons of no other
EVERY = ""  # in place of a code: all calls
MANY = 4  # of more than these, all can be decided at once
ALL = 10_000  # the button that revokes everything
# The fields of older forms: a button about all calls or about the checked ones, and one of a grant.
DECISION, CALLS, CHECKED, REVOKE = "decision", "calls", 4, "revoke"
BUTTONS: Mapping[int, Choice] = {1: "approve", 2: "always", 3: "deny", CHECKED: "approve"}
LEFT_OPEN = Answer(False, by_user=False)  # the button was about another call: the gate asks about this one again
NOT_CHOSEN = Answer(False, "the user did not approve it", by_user=False)
COMMAND = "/permissions"
SURE = f"From now on this runs in this conversation without asking. {COMMAND} revokes it."
TITLE_CHARS = 80
_ADDRESS = re.compile(r":?//|(?<=www)\.", re.IGNORECASE)


def presses(codes: Sequence[str]) -> dict[int, tuple[Choice, str]]:
    """What the buttons of a question about the calls with these codes decide, by their constants, and about which code.

    The constants are made of the codes, which the state has sealed: those of another question decide nothing here.
    """
    found = dict[int, tuple[Choice, str]]()
    for code in filter(None, codes):  # older states have none
        first = int(code, 36) * 10
        if not found and len(codes) > MANY:
            found.update({first + 3: ("approve", EVERY), first + 4: ("deny", EVERY)})
        found.update({first: ("approve", code), first + 1: ("deny", code), first + 2: ("always", code)})
    return found


def decided(form_value: Any, codes: Sequence[str]) -> tuple[Answer, ...] | None:
    """One answer for each call with these codes; None: the form's value has no button of their question."""
    if (number := number_of(form_value, BUTTON)) and (found := presses(codes).get(number)):
        choice, about = found
        return tuple(Answer.of(choice) if about in (EVERY, code) else LEFT_OPEN for code in codes)
    pressed = number_of(form_value, DECISION)
    if pressed not in BUTTONS:
        return None
    answer, checked = Answer.of(BUTTONS[pressed]), form_value.get(CALLS)
    chosen = set(map(str, cast("list[Any]", checked))) if isinstance(checked, list) else set[str]()
    numbers = map(str, range(1, len(codes) + 1))
    return tuple(answer if pressed != CHECKED or number in chosen else NOT_CHOSEN for number in numbers)


def revoked_by(form_value: Any, count: int) -> str:
    """What the pressed button under a list of `count` grants revokes: a number, or `all`; empty: none was pressed."""
    pressed = number_of(form_value, BUTTON) or number_of(form_value, REVOKE)
    return "all" if pressed == ALL else str(pressed) if 0 < pressed <= count else ""


def number_of(form_value: Any, name: str) -> int:
    """The number of the pressed button of that field; 0 where there is none: no button has that."""
    number = cast("Mapping[str, Any]", form_value).get(name) if isinstance(form_value, Mapping) else None
    whole = int(number) if isinstance(number, float) and number.is_integer() else number
    return whole if type(whole) is int else 0  # `true` is not 1


def form_schema(pending: Sequence[Pending], codes: Sequence[str]) -> dict[str, Any]:
    """A button for each decision about each waiting call; typing a reply stays possible."""
    items, options = dict(zip(codes, pending, strict=True)), list[dict[str, Any]]()
    for number, (choice, code) in presses(codes).items():
        about = f"{code}: {label(items[code].title.replace(': ', ' ', 1))}" if code else "all"
        option = button(number, f"{choice.capitalize()} {about}", f"{choice} {code or 'all'}")
        if choice == "always":
            if not items[code].grant_description:
                continue
            option["dial:widgetOptions"]["confirmationMessage"] = SURE
        options.append(option)
    return {"type": "object", "properties": {BUTTON: buttons(options)}}


def revoking_form(grants: Sequence[Grant]) -> dict[str, Any] | None:
    """A button for each grant; None where there is none."""
    each = [
        button(number, f"Revoke {number}: {label(grant.describe())}", f"{COMMAND} revoke {number}")
        for number, grant in enumerate(grants, 1)
    ]
    every = [button(ALL, "Revoke all", f"{COMMAND} revoke all")] if len(grants) > MANY else []
    return {"type": "object", "properties": {BUTTON: buttons([*every, *each])}} if grants else None


def buttons(choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A row of buttons in a form.

    DIAL Chat 0.x knows buttons with numbers only; 1.x would send a description, if there was one, in place of a text.
    """
    return {"type": "number", "dial:widget": "buttons", "oneOf": list(choices)}


def button(number: int, title: str, text: str, *, submit: bool = True) -> dict[str, Any]:
    """A button that puts `text` into the user's message, and sends it."""
    return {"const": number, "title": title, "dial:widgetOptions": {"populateText": text, "submit": submit}}


def label(title: str) -> str:
    """A waiting call's title as plain text in which no chat would recognise an address."""
    return _ADDRESS.sub(r"[\g<0>]", plain(title)[:TITLE_CHARS])
