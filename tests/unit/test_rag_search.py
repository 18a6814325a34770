"""Search by meaning, words and phrases, with vectors that only know words, and the order a deployment gives."""

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from task.documents.model import Block
from task.errors import ProviderError, ToolError
from task.llm.base import TextDelta, Usage
from task.llm.scripted import Pause, Reply, ScriptedModel, says
from task.search.chunks import ChunkedDocument, chunk_document
from task.search.passages import estimated_tokens, ordered, passages, reordered, reranked, whole
from task.search.ranking import (
    DocumentIndex,
    Hit,
    Lexical,
    SearchOptions,
    build_index,
    indexed_texts,
    phrases_of,
    search,
    tokens,
)
from tests.support.embedding import word_vector

WORDS_ONLY = SearchOptions(lexical_weight=1, phrase_weight=0)
SECTIONS = {
    "Defrosting": "Press AUTO DEFROST and choose meat, poultry or fish.",
    "Cleaning": "Take out the glass tray and wash it in warm soapy water.",
    "Spare parts": "The roller ring is part MW-4471/B; the tray is part MW-4472/A.",
    "Garantie": "Der Hersteller gewährt zwei Jahre Gewährleistung.",
    "保証": "製造元は二年間の保証を提供します。",
}


def made(sections: dict[str, str], name: str = "manual.md") -> DocumentIndex:
    text = "\n\n".join(f"# {title}\n\n{body}" for title, body in sections.items())
    document = chunk_document(name, [Block(text)])
    return build_index(document, np.stack([word_vector(text) for text in indexed_texts(document)]))


def best(index: DocumentIndex, query: str, options: SearchOptions | None = None) -> str:
    hits = search([index], query, word_vector(query), options)
    return index.chunks[hits[0].chunk].place.headings[-1]


@pytest.mark.fault("search in documents: a language the model does not know")
def test_identifiers_other_scripts_and_any_ending_are_found_by_words() -> None:
    assert best(made(SECTIONS), "What is MW-4471/B?") == "Spare parts"

    index = made(SECTIONS)
    assert best(index, "Wie lange ist die Gewährleistung?", WORDS_ONLY) == "Garantie"
    assert best(index, "保証は何年間ですか", WORDS_ONLY) == "保証"

    assert tokens("Trays, batteries and MW-4471/B")[:3] == ["tray", "battery", "and"]
    assert {"mw-4471/b", "mw", "4471", "b"} <= set(tokens("MW-4471/B"))

    index = made({"Jagd": "Die Jägerinnen warteten.", "Meer": "Die Fischer schliefen."})
    assert best(index, "Warum wartete eine Jägerin?", WORDS_ONLY) == "Jagd"

    index = made(SECTIONS)
    assert search([index], "?!", word_vector("water tray"))[0].similarity > 0
    assert Lexical([]).scores({"any": 1.0}).shape == (0,)
    assert not Lexical(["", "..."]).scores({"any": 1.0}).any()


def test_a_literal_phrase_wins_over_the_same_words_apart() -> None:
    sections = {
        "One": "The warm water is soapy and the tray is washed.",
        "Two": "Wash the tray in warm soapy water.",
        "Three": "The tray, the water, warm, soapy: wash.",
    }
    assert best(made(sections), 'where is "warm soapy water" mentioned') == "Two"
    assert "warm soapy water" in phrases_of('where is "warm soapy water" mentioned')


def test_chunks_that_repeat_one_another_take_one_place() -> None:
    lines = {f"Copy {number}": "Keep the door clean." for number in range(20)}
    index = made({**lines, "Other": "Keep the seal clean and dry."})
    same = build_index(
        ChunkedDocument("copies", index.document.text, tuple(index.chunks[0] for _ in range(20))),
        np.stack([word_vector("Keep the door clean.")] * 20),
    )
    assert len(search([same], "door clean", word_vector("door clean"))) == 1


def test_several_documents_are_searched_together_and_a_words_rarity_depends_on_all() -> None:
    manual, policy = made(SECTIONS), made({"Leave": "Employees take thirty days of leave."}, "policy.md")
    hits = search([manual, policy], "days of leave", word_vector("days of leave"))
    assert (hits[0].document, hits[0].similarity > 0.3) == (1, True)

    boats = made({f"Pier {number}": "A blue boat." for number in range(20)}, "boats.md")
    cars = made({**{f"Car {number}": f"It is in row {number}." for number in range(6)}, "Trip": "A red boat."})
    hits = search([boats, cars], "boat row", word_vector("?"), WORDS_ONLY)
    found = [[boats, cars][hit.document].chunks[hit.chunk].place.headings[0] for hit in hits]
    assert all(heading.startswith("Car") for heading in found[:6]), "a boat is rare among cars, but not in all of them"
    words = Lexical(["row", "boat", "boat"])
    assert (words.count("boat"), words.count("row"), words.count("sea")) == (2, 1, 0)


def test_neighbours_are_merged_and_the_budget_bounds_what_is_beyond_k_chunks() -> None:
    text = "# Log\n\n" + " ".join(f"Event {number} happened in hall {number}." for number in range(100))
    document = chunk_document("log.md", [Block(text)])
    [passage] = passages([document], [Hit(0, 3, 0.9)], k=3, tokens=800)
    chunks = [str(chunk) for chunk in document.chunks[2:5]]
    assert all(chunk in passage.source for chunk in chunks)
    assert passage.source in document.text
    assert passage.title == "log.md, Log"

    document = chunk_document("a.pdf", [Block(f"Sentence of page {page}. " * 20, page=page) for page in range(1, 30)])
    hits = [Hit(0, chunk, 0.5) for chunk in (20, 3, 10, 15, 7)]
    few = passages([document], hits, k=3, tokens=100)
    more = passages([document], hits, k=3, tokens=600)
    assert [passage.number for passage in few] == [1, 2, 3]
    assert few[0].where == f"p. {document.chunks[20].place.page}"
    assert len(more) > len(few)
    assert sum(estimated_tokens(passage.text) for passage in more) <= 700


def test_places_are_described_for_people_to_find_them() -> None:
    table = chunk_document("r.csv", [Block("| 1 | a |\n| 2 | b |", "| No | Name |\n| --- | --- |")])
    plain = chunk_document("n.txt", [Block("first\nsecond\nthird")])
    assert [passage.title for passage in whole([table, plain])] == ["r.csv, rows 1-2", "n.txt, lines 1-3"]
    assert whole([table])[0].text.startswith("| No | Name |")


DOCUMENT = chunk_document("notes.md", [Block("\n\n".join(f"# Part {n}\n\nThe text of part {n}." for n in range(12)))])
HITS = [Hit(0, chunk, 0.5) for chunk in range(12)]


async def order(*replies: Reply, spent: list[Usage] | None = None) -> list[int]:
    usage = spent if spent is not None else []
    found = await reranked(ScriptedModel(*replies), "Which part?", HITS, [DOCUMENT], usage.append)
    return [hit.chunk for hit in found]


@pytest.mark.parametrize("fault", [None, ToolError("no such model")])
async def test_a_cross_encoder_orders_the_ten_best_excerpts_or_leaves_them(fault: ToolError | None) -> None:
    async def rank(question: str, texts: Sequence[str]) -> NDArray[np.float32]:
        if fault is not None:
            raise fault
        assert (question, len(texts)) == ("Which part?", 10)
        return np.array(["part 7" in text for text in texts], np.float32)

    found = [hit.chunk for hit in await reordered(rank, "Which part?", HITS, [DOCUMENT])]
    assert found == (list(range(12)) if fault else [7, *range(7), 8, 9, 10, 11])


async def test_the_best_excerpts_come_first_by_one_request() -> None:
    spent: list[Usage] = []
    used = Usage(prompt_tokens=90, completion_tokens=5)
    assert await order(says("3, ", "1", usage=used), spent=spent) == [2, 0, 1, *range(3, 12)]
    assert spent == [used]

    model = ScriptedModel(says("1"))
    await reranked(model, "Which part?", HITS, [DOCUMENT], lambda _: None)
    [[_, asked]] = model.requests
    assert asked.text().count("The text of part") == 10
    assert "[10] notes.md > Part 9\n# Part 9\n\nThe text of part 9." in asked.text()
    assert asked.text().endswith("Question: Which part?")


@pytest.mark.fault("search in documents: a reranker that refuses, is silent, or writes something else than numbers")
async def test_a_reranker_that_gives_no_order_refuses_or_is_silent_changes_nothing() -> None:
    replies = [says(text) for text in ("", "none of them", "0, 11, 99", "<think>7 is nice</think>", "[]")]
    replies += [Reply((ProviderError("no", status_code=status),)) for status in (401, 429, 500, None)]
    for reply in [*replies, Reply((TextDelta("5, 4"), ProviderError("broke off")))]:
        assert await order(reply) == list(range(12)), reply

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
