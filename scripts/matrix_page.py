"""Write docs/matrix.md from the cells of the matrix; `--check` only reports whether it is current."""

import sys

from scripts.pages import publish
from tests.contract.matrix.backends import BACKENDS
from tests.contract.matrix.cells import CONVERSATIONS, DOORS, EXCEPTIONS, driven, exceptions

OPENING = """\
# The matrix

<!-- Written by `make docs` from tests/contract/matrix/; change the texts there and in scripts/matrix_page.py. -->

The product is one thing behind all its front doors and before all its model providers. The matrix proves it: the same
[conversations](../tests/contract/matrix/conversations.yaml) are held in every cell, and every cell must give what the
conversation says.

The product and the provider's peer, which speaks the provider's protocol, are processes of their own; the coder
gets the product's own toolbox in the test's process. A conversation is driven from outside: over HTTP, in a terminal,
by the client of an editor.
`make test-system` holds all of them, `make test` a sample. The columns of the HTTP doors (DIAL, /v1, /v1 streaming,
/chat) are held once more through [one address](operations.md#replicas): HAProxy in front of two agents that share a
PostgreSQL, which divides the turns of each conversation between them.

## What is compared

What a turn must give follows from the conversation alone, so that no cell is the measure of the others, and a faulty
adapter fails in its own row only. Of each turn is compared:

| part | what it is |
|---|---|
| decisions | which calls wait for the user; what an answer did is in the results |
| calls | each call that the door keeps, with its arguments, in order |
| results | the result of each call as the door keeps it, denials and failures included |
| answer | the text that the user reads, the question about a call left out; whether the turn failed |
| requests | each request to the model in one canonical form, see below |
| stages | at the DIAL door only: the name and the status of each stage |

A request's canonical form has each message with its role, its text, its calls and the number of its pictures, a result
with the number of its call, and the names of the tools that are offered. Ids of calls, codes of questions, references
of errors, durations and the places of files are left out.

## The exceptions

| name | what differs |
|---|---|
"""


def page() -> str:
    rows = [f"| {name} | {reason} |" for name, reason in EXCEPTIONS.items()]
    cells = [
        f"| {backend.wire} | {' | '.join(_cell(name, door) for door in DOORS)} |" for name, backend in BACKENDS.items()
    ]
    return "\n".join(
        [
            OPENING.rstrip("\n"),
            *rows,
            "\n## The cells\n",
            "How many conversations are held, and the exceptions that apply to some of them:\n",
            f"| | {' | '.join(DOORS)} |",
            f"|---{'|---' * len(DOORS)}|",
            *cells,
            "\nThe conversations:\n",
            *(f"{number}. {name}" for number, name in enumerate(CONVERSATIONS, 1)),
            "",
        ]
    )


def _cell(backend: str, door: str) -> str:
    held = sum(driven(conversation, door) for conversation in CONVERSATIONS.values())
    found = [exceptions(conversation, BACKENDS[backend], door) for conversation in CONVERSATIONS.values()]
    return "; ".join([str(held), *(name for name in EXCEPTIONS if any(name in names for names in found))])


if __name__ == "__main__":
    sys.exit(publish("matrix.md", page(), "tests/contract/matrix", sys.argv[1:]))
