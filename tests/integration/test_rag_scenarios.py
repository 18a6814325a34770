"""Questions about long documents, as people ask them in DIAL Chat; numbered like the validation scenarios."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import Reply, says, wants
from tests.support.chat_reader import Answer
from tests.support.documents import manual
from tests.support.product import Product, product
from tests.support.upstream import Received

RAG = "rag_search_tool"
PLATE = "How should I clean the plate? Use semantic search."


def searches(question: str) -> Any:
    def call(received: Received) -> Reply:
        text = next(m["content"] for m in reversed(received.messages) if m["role"] == "user")
        [url] = set(re.findall(r"(files/\S+)", text))
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


async def asked_about_the_manual(p: Product, question: str, **more: Any) -> Answer:
    file = await p.reader.upload("manual.txt", manual().encode(), "text/plain")
    return await p.reader.ask(question, file, **more)


@pytest.fixture
def settings(embedding_dir: Path) -> dict[str, Any]:
    return {"rag": {"process_dir": embedding_dir}}


async def test_08_how_to_clean_the_plate_is_found_by_search(tmp_path: Path, settings: dict[str, Any]) -> None:
    turns = [searches(PLATE), reads_the_excerpts, repeats_the_tool]
    async with product(*turns, tmp_path=tmp_path, **settings) as p:
        answer = await asked_about_the_manual(p, PLATE)
    [stage] = answer.stages.values()
    parts = re.findall(r"^## (.*)$", stage.content, re.MULTILINE)
    assert parts == [
        "Request arguments:", "Indexing document", "Searching for relevant content", "Generating response", "Sources"
    ]  # fmt: skip
    assert f"**Request**: {PLATE}" in stage.content
    assert re.search(r"\*\*manual\.txt\*\*: \d+ chunks", stage.content)
    assert len(re.findall(r"^\d\. similarity \d\.\d\d", stage.content, re.MULTILINE)) == 3
    assert "warm soapy water" in answer.content
    assert stage.status == "completed"
