"""A model's turns in conversations about documents: it reads files, searches, answers from excerpts and results."""

import re
from collections.abc import Callable

from task.llm.scripted import Reply, says, wants
from tests.support.upstream import Received

RAG, EXTRACT = "rag_search_tool", "file_content_extraction_tool"
PLATE = "How should I clean the plate? Use semantic search."
DEFROST = "How do I defrost food?"
POPCORN = "How long should I microwave popcorn?"
TABLE = "Find all temperature settings mentioned in the manual and create a table"
INVENTED_TABLE = (
    "| setting | value |\n| --- | --- |\n| auto defrost: choose meat | meat, poultry or fish |\n| grill | 230 °C |"
)


def attached_urls(received: Received) -> list[str]:
    """The URLs of the attached files, as the model reads them in the user's message."""
    text = next(m["content"] for m in reversed(received.messages) if m["role"] == "user")
    return re.findall(r"^- .*: (files/\S+)$", text, re.MULTILINE)


def reads_the_file(received: Received) -> Reply:
    """A call that reads the first attached file."""
    return wants(EXTRACT, file_url=attached_urls(received)[0])


def searches(question: str) -> Callable[[Received], Reply]:
    """A call of the search with this question, in the one file of the conversation."""

    def call(received: Received) -> Reply:
        asked = " ".join(m["content"] for m in received.messages if m["role"] == "user")
        [url] = set(re.findall(r"files/\S+", asked))
        return wants(RAG, request=question, file_url=url)

    return call


def reads_the_excerpts(received: Received) -> Reply:
    """What the generating deployment is asked; it answers with the sentence about the tray, or that there is none."""
    excerpts, _, question = received.messages[-1]["content"].rpartition("\n\nQuestion: ")
    found = re.search(r"Excerpt \[(\d+)\][^\n]*\n(?:(?!Excerpt \[).)*?(Take out the glass tray[^.]*\.)", excerpts, re.S)
    if "popcorn" in question or found is None:
        return says("NOT IN THE DOCUMENT")
    number, sentence = found.groups()
    return says(f'Wash it in warm soapy water or in a dishwasher [{number}].\n\nQuotes:\n[{number}] "{sentence}"')


def repeats_the_tool(received: Received) -> Reply:
    return says(received.messages[-1]["content"])
