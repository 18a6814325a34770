"""A deployment orders the best excerpts; whatever goes wrong, the search keeps its own order."""

from __future__ import annotations

import asyncio

import pytest

from task.documents.model import Block
from task.errors import ProviderError
from task.llm.base import TextDelta, Usage
from task.llm.scripted import Pause, Reply, ScriptedModel, says
from task.search.chunks import chunk_document
from task.search.passages import ordered, reranked
from task.search.ranking import Hit

DOCUMENT = chunk_document("notes.md", [Block("\n\n".join(f"# Part {n}\n\nThe text of part {n}." for n in range(12)))])
HITS = [Hit(0, chunk, 0.5, 1.0) for chunk in range(12)]


async def order(*replies: Reply, spent: list[Usage] | None = None) -> list[int]:
    usage = spent if spent is not None else []
    found = await reranked(ScriptedModel(*replies), "Which part?", HITS, [DOCUMENT], usage.append)
    return [hit.chunk for hit in found]


async def test_the_best_come_first_and_the_others_keep_their_order() -> None:
    spent: list[Usage] = []
    used = Usage(prompt_tokens=90, completion_tokens=5)
    assert await order(says("3, ", "1", usage=used), spent=spent) == [2, 0, 1, *range(3, 12)]
    assert spent == [used]


async def test_ten_excerpts_and_the_question_are_one_request() -> None:
    model = ScriptedModel(says("1"))
    await reranked(model, "Which part?", HITS, [DOCUMENT], lambda _: None)
    [[_, asked]] = model.requests
    assert asked.text().count("The text of part") == 10
    assert "[10] notes.md > Part 9\n# Part 9\n\nThe text of part 9." in asked.text()
    assert asked.text().endswith("Question: Which part?")


@pytest.mark.fault("search in documents: a reranker that refuses, is silent, or writes something else than numbers")
@pytest.mark.parametrize("text", ["", "none of them", "0, 11, 99", "<think>7 is nice</think>", "[]"])
async def test_an_answer_without_an_order_changes_nothing(text: str) -> None:
    assert await order(says(text)) == list(range(12))


@pytest.mark.fault("search in documents: a reranker that refuses, is silent, or writes something else than numbers")
@pytest.mark.parametrize("status", [401, 429, 500, None])
async def test_a_reranker_that_refuses_changes_nothing(status: int | None) -> None:
    assert await order(Reply((ProviderError("no", status_code=status),))) == list(range(12))
    assert await order(Reply((TextDelta("5, 4"), ProviderError("broke off")))) == list(range(12))


@pytest.mark.fault("search in documents: a reranker that refuses, is silent, or writes something else than numbers")
async def test_a_reranker_that_is_silent_is_given_up() -> None:
    model = ScriptedModel(Reply((TextDelta("2"), Pause(1000))))
    async with asyncio.timeout(25):
        found = await reranked(model, "Which part?", HITS, [DOCUMENT], lambda _: None, seconds=0.05)
    assert found == HITS


@pytest.mark.parametrize(
    ("text", "first"), [("2, 2, 1", [1, 0]), ("[3]\n[2]", [2, 1]), ("Best: 10", [9]), ("1) 4", [0, 3])]
)
def test_numbers_are_read_in_any_form(text: str, first: list[int]) -> None:
    assert [hit.chunk for hit in ordered(text, HITS)][: len(first)] == first
    assert sorted(hit.chunk for hit in ordered(text, HITS)) == list(range(12))
