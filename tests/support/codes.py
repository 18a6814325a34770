"""The codes of a question as a person reads them."""

import re

from task.approvals.approvals import codes_in


def codes_shown(question: str) -> tuple[str, ...]:
    """The codes in the last lines of a question, in the order of its calls."""
    reply = re.search(r"Reply \*\*(approve [^*]+)\*\*", question)
    assert reply is not None, question
    return codes_in(reply[1]) or ()
