"""Put waiting calls to the user, as text with their cards, and list what is allowed."""

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from task.approvals.approvals import codes_in, words_of
from task.approvals.forms import COMMAND
from task.conversation.messages import Message, Role
from task.permissions.gate import Grant, Grants
from task.permissions.icerc import words
from task.tools.toolbox import Pending

_OPENING = "**May I do th"
# HTML that would hide what follows it
_HIDING = re.compile(
    r"<(!--|(?:details|iframe|noscript|script|select|style|svg|template|textarea|title|xmp)\b)", re.IGNORECASE
)
_MOST_ENDS = 100
_ANSWERING = (  # where a tool asks for something
    "Reply **answer {0}: …** with the value, or with `name = value` lines where there are several fields, "
    "**approve {0}** to answer as shown, or **deny {0} because …**."
)
_CODED = re.compile(r"approve [a-z][2-9][a-z][2-9]")

USAGE = f"`{COMMAND} revoke 1` revokes the first one, `{COMMAND} revoke all` all of them."
NONE = "Nothing is allowed beyond the rules: you are asked each time."


def question(pending: Sequence[Pending], codes: Sequence[str], seconds: float, said: str = "") -> str:
    """The cards of all waiting calls as Markdown, and how to answer by their codes within `seconds`.

    `said` is the model's text before it in the answer: HTML that it has left open must not hide the cards.
    """
    found = [found[1].lower() for found in _HIDING.finditer(said)][-_MOST_ENDS:]
    ends = "".join("-->" if name == "!--" else f"</{name}>" for name in reversed(found))
    opening, answering = f"{ends}\n\n" if ends else "", _how_to_answer(pending, codes, seconds)
    if len(pending) == 1:
        return f"{opening}**May I do this?**\n\n{pending[0].card.markdown(pending[0].reason)}\n{answering}"
    # The code comes first, where no title can imitate it.
    cards = [
        f"#### {code} · {words(item.title)}\n\n{item.card.markdown(item.reason)}\n"
        + (f"*Always* would cover {words(wider)}.\n" if (wider := item.grant_description) else _ANSWERING.format(code))
        for item, code in zip(pending, codes, strict=True)
    ]
    return "\n".join([f"{opening}**May I do these {len(pending)} things?**\n", *cards, answering])


def said_in(added: Sequence[Message]) -> str:
    """What the model wrote in the messages of an answer."""
    return "\n".join(message.text() for message in added if message.role is Role.ASSISTANT and message.text())


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


def _how_to_answer(pending: Sequence[Pending], codes: Sequence[str], seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    open_for = f"The question is open for {minutes} minute{'s' if minutes > 1 else ''}."
    if len(codes) == 1:
        [code] = codes
        if not pending[0].grant_description:
            return f"{_ANSWERING.format(code)} Any other reply means no. {open_for}"
        return (
            f"Reply **approve {code}** (this once), **always {code}** (also later in this conversation: "
            f"{words(pending[0].grant_description)}) or **deny {code} because …**. Any other reply means no. {open_for}"
        )
    choices = ("approve", "always", "deny")[-len(codes) :]
    each = ", ".join(f"{choice} {code}" for choice, code in zip(choices, codes, strict=False))
    return (
        f"Reply **approve {', '.join(codes[:-1])} and {codes[-1]}** (this once), **always** or **deny** with the same "
        f"codes, or decide one by one: **{each} because …**. What you do not approve does not run. {open_for}"
    )


def revoked(which: str, grants: Grants) -> str:
    """Revoke the grant with this number, or `all`; what was revoked, and what is still allowed."""
    listed = grants.lasting()
    if not listed:
        return NONE
    if which != "all" and not 0 < int(which) <= len(listed):
        return f"There is no number {which}.\n\n{listing(listed)}"
    chosen = listed if which == "all" else [listed[int(which) - 1]]
    for grant in chosen:
        while grants.revoke(grant):
            continue
    names = ", ".join(words(grant.describe()) for grant in chosen)
    return f"Revoked: {names}.\n\n{listing(grants.lasting())}"


def listing(grants: Sequence[Grant]) -> str:
    """What is allowed, numbered, with its end, and how to take it back."""
    if not grants:
        return NONE
    lines = [
        f"{number}. {words(grant.describe())}, until {datetime.fromtimestamp(grant.expires, UTC):%Y-%m-%d %H:%M UTC}"
        for number, grant in enumerate(grants, 1)
    ]
    return "\n".join(["Allowed in this conversation without asking:\n", *lines, f"\n{USAGE}"])
