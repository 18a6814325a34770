"""`/permissions`: list what a person has allowed in a conversation, and take it back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from task.permissions.grants import Grant, Grants
from task.permissions.icerc import words

COMMAND = "/permissions"
_COMMAND = re.compile(r"\s*/permissions(?:\s+revoke\s+(all|\d{1,4}))?\s*", re.ASCII | re.IGNORECASE)
USAGE = f"`{COMMAND} revoke 1` takes back the first one, `{COMMAND} revoke all` all of them."
NONE = "Nothing is allowed beyond the rules: I ask each time."


@dataclass(frozen=True, slots=True)
class PermissionsCommand:
    """List, or revoke the grant with that number (0: all of them)."""

    revoke: int | None = None


def command_of(text: str) -> PermissionsCommand | None:
    """The command that the message is; None: it is something else."""
    found = _COMMAND.fullmatch(text)
    if found is None:
        return None
    number = found[1]
    return PermissionsCommand(None if number is None else 0 if number.lower() == "all" else int(number))


def carried_out(command: PermissionsCommand, grants: Grants) -> str:
    """Do it; the answer as Markdown."""
    listed = grants.lasting()
    if command.revoke is None or not listed:
        return listing(listed)
    if command.revoke > len(listed):
        return f"There is no number {command.revoke}.\n\n{listing(listed)}"
    chosen = listed if command.revoke == 0 else [listed[command.revoke - 1]]
    for grant in chosen:
        while grants.revoke(grant):
            continue
    revoked = ", ".join(words(grant.describe()) for grant in chosen)
    return f"Revoked: {revoked}.\n\n{listing(grants.lasting())}"


def listing(grants: Sequence[Grant]) -> str:
    """What is allowed, numbered, with its end, and how to take it back."""
    if not grants:
        return NONE
    lines = [
        f"{number}. {words(grant.describe())}, until {_time(grant.expires)}" for number, grant in enumerate(grants, 1)
    ]
    return "\n".join(["Allowed in this conversation without a question:\n", *lines, f"\n{USAGE}"])


def revoking_form(grants: Sequence[Grant]) -> dict[str, Any] | None:
    """A button for each grant; None where there is none."""
    if not grants:
        return None
    buttons = [
        {
            "const": number,
            "title": f"Revoke {number}",
            "dial:widgetOptions": {"populateText": f"{COMMAND} revoke {number}", "submit": True},
        }
        for number in range(1, len(grants) + 1)
    ]
    shape = {"type": "number", "description": "Take back", "dial:widget": "buttons", "oneOf": buttons}
    return {"type": "object", "properties": {"revoke": shape}}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
