"""Questions about long documents in DIAL Chat, numbered like the validation scenarios; and search at full size."""

import re
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from task.documents.pool import ReaderPool
from task.embedding.embedder import Embedder
from task.llm.scripted import Reply, says, wants
from task.search.readings import Readings
from task.search.shelf import DocumentCache, Shelf
from task.tools.rag.rag_tool import RagTool
from tests.support.chat_reader import Answer
from tests.support.choices import RecordingChoice
from tests.support.core import API_KEY
from tests.support.document_turns import (
    DEFROST,
    INVENTED_TABLE,
    PLATE,
    POPCORN,
    RAG,
    TABLE,
    attached_urls,
    reads_the_excerpts,
    repeats_the_tool,
    searches,
)
from tests.support.documents import MemoryFiles, manual
from tests.support.http_api import Api, said, uploaded
from tests.support.pdfs import blank, drawn, text_pdf
from tests.support.product import MODEL, Product, product
from tests.support.tool_calls import called, caller_of
from tests.support.upstream import Received, http_error
from tests.support.waiting import until

MANUAL = manual()
LOADING = "weights/embedding.lock"  # is there once the model is loaded from that folder
SHORT = manual(8_000)  # long enough to be searched, and indexed in a moment


async def asked_about_the_manual(p: Product, question: str, text: str = MANUAL) -> Answer:
    return await p.reader.ask(question, await p.reader.upload("manual.txt", text.encode(), "text/plain"))


@pytest.fixture
def settings(weights: None) -> dict[str, Any]:
    return {"embedding_model": ""}


@pytest.mark.usefixtures("chat")
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


@pytest.mark.usefixtures("chat")
async def test_09_a_second_question_uses_the_index_and_nothing_is_invented(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    turns = [searches(DEFROST), says("Press AUTO DEFROST [1]."), says("Press AUTO DEFROST."), searches(POPCORN)]
    async with product(*turns, reads_the_excerpts, repeats_the_tool, tmp_path=tmp_path, **settings) as p:
        one = await asked_about_the_manual(p, DEFROST)
        two = await p.reader.ask(POPCORN)
    assert "Using cached index" not in one.stages[0].content
    assert "Using cached index" in two.stages[0].content
    assert two.content.startswith("Not in the document")
    assert two.attachments == {}


@pytest.mark.usefixtures("chat")
async def test_19_a_table_contains_only_facts_of_the_manual(tmp_path: Path, settings: dict[str, Any]) -> None:
    turns = [searches(TABLE), says(INVENTED_TABLE), repeats_the_tool]
    async with product(*turns, tmp_path=tmp_path, **settings) as p:
        answer = await asked_about_the_manual(p, TABLE)
    rows = answer.text.splitlines()
    assert re.fullmatch(r"\| auto defrost: choose meat \| meat, poultry or fish \[\d\] \|", rows[2])
    assert rows[3] == "| grill | 230 °C (not supported by the document) |"


@pytest.mark.usefixtures("chat")
async def test_citations_are_attached_with_words_of_the_document(tmp_path: Path, settings: dict[str, Any]) -> None:
    turns = [searches(PLATE), reads_the_excerpts, says("In soapy water [1].")]
    async with product(*turns, tmp_path=tmp_path, **settings) as p:
        answer = await asked_about_the_manual(p, PLATE, SHORT)
        url = re.findall(r"files/\S+", str(p.upstream.requests[0].messages[-1]["content"]))[0]
    [citation] = answer.attachments.values()
    assert re.fullmatch(r"\[\d\] manual\.txt, .+", citation["title"])
    assert citation["data"] in SHORT
    assert (citation["type"], citation["reference_type"]) == ("text/markdown", "text/plain")
    assert citation["reference_url"] == url


async def test_a_reranker_of_the_settings_orders_the_excerpts(tmp_path: Path, settings: dict[str, Any]) -> None:
    turns = [searches(PLATE), says("2, 1"), reads_the_excerpts, repeats_the_tool]
    async with product(*turns, tmp_path=tmp_path, rag={"reranker": MODEL}, **settings) as p:
        answer = await asked_about_the_manual(p, PLATE, SHORT)
    _, ordering, generation, _ = p.upstream.requests
    second = ordering.messages[1]["content"].split("\n\n[2] ")[1].split("\n\n[3] ")[0].rpartition("\n")[2]
    assert second[:60] in answer.stages[0].content.split("Searching for relevant content\n\n")[1].splitlines()[0]
    assert "Excerpt [" in generation.messages[1]["content"]
    assert answer.stages[0].status == "completed"


@pytest.mark.usefixtures("chat")
async def test_two_searches_in_one_answer_number_their_sources_once_and_the_answer_carries_those_it_cites(
    tmp_path: Path,
) -> None:
    facts = {"leave.txt": b"Leave is thirty days a year.", "notice.txt": b"Notice is four weeks at the end of a month."}

    def both(received: Received) -> Reply:
        leave, notice = attached_urls(received)
        return wants(RAG, request="How long is leave?", file_url=leave) & wants(
            RAG, request="How long is notice?", file_url=notice
        )

    def cites(received: Received) -> Reply:
        excerpts = received.messages[-1]["content"]
        [number] = re.findall(r"Excerpt \[(\d+)\]", excerpts)
        return says(
            f"Leave is thirty days [{number}]." if "leave.txt" in excerpts else f"Notice is four weeks [{number}]."
        )

    def of_notice(received: Received) -> Reply:
        results = "\n".join(str(message["content"]) for message in received.messages if message["role"] == "tool")
        numbers.append(re.findall(r"^\[(\d+)\] (?:leave|notice)\.txt", results, re.MULTILINE))
        [number] = re.findall(r"Notice is four weeks \[(\d+)\]", results)
        return says(f"Four weeks [{number}].")

    def of_leave(received: Received) -> Reply:
        results = "\n".join(str(message["content"]) for message in received.messages if message["role"] == "tool")
        [number] = re.findall(r"Leave is thirty days \[(\d+)\]", results)
        return says(f"Thirty days [{number}].")

    numbers: list[list[str]] = []
    async with product(both, cites, cites, of_notice, of_leave, tmp_path=tmp_path) as p:
        files = [await p.reader.upload(name, content, "text/plain") for name, content in facts.items()]
        answer = await p.reader.ask("How long are leave and notice?", *files)
        later = await p.reader.ask("And leave alone?")
    assert sorted(numbers[0]) == ["1", "2"]
    [notice], [leave] = answer.attachments.values(), later.attachments.values()
    assert notice["title"] == f"[{answer.text[-3]}] notice.txt, line 1"
    assert leave["title"] == f"[{later.text[-3]}] leave.txt, line 1"
    shown = [item["title"] for stage in answer.stages.values() for item in stage.attachments]
    assert {notice["title"], leave["title"]} == set(shown)


@pytest.mark.fault("search in documents: a scanned PDF")
@pytest.mark.fault("search in documents: an empty document")
@pytest.mark.parametrize(
    ("name", "content", "kind", "text"),
    [
        ("empty.txt", b"", "text/plain", "it is empty"),
        ("blank.txt", b" \n\n ", "text/plain", "it is empty"),
        ("scan.pdf", drawn(blank), "application/pdf", "no text"),
        ("tool.exe", b"MZ\x90\x00" + bytes(200), "application/octet-stream", "not supported"),
    ],
)
async def test_a_file_without_text_is_explained(
    name: str, content: bytes, kind: str, text: str, tmp_path: Path, settings: dict[str, Any]
) -> None:
    turns = [searches("What does it say?"), says("Nothing to read.")]
    async with product(*turns, tmp_path=tmp_path, **settings) as p:
        await p.reader.ask("What does it say?", await p.reader.upload(name, content, kind, by_program=True))
    assert text in p.upstream.requests[1].messages[-1]["content"]


@pytest.mark.fault("search in documents: access withdrawn")
async def test_another_persons_file_is_refused_even_if_it_is_indexed(tmp_path: Path, settings: dict[str, Any]) -> None:
    asked: list[str] = []

    def names_it(received: Received) -> Reply:
        return wants(RAG, request=PLATE, file_url=asked[0])

    turns = [searches(PLATE), reads_the_excerpts, says("Done."), names_it, says("I may not.")]
    async with product(*turns, tmp_path=tmp_path, **settings) as p:
        await asked_about_the_manual(p, PLATE, SHORT)
        asked += re.findall(r"files/\S+", p.upstream.requests[0].messages[-1]["content"])
        answer = await p.other.ask(f"Read {asked[0]}")
    text = p.upstream.requests[-1].messages[-1]["content"]
    assert "attach" in text
    assert "soapy" not in text + answer.stages[0].content


@pytest.mark.fault("search in documents: a deployment that cannot answer")
async def test_a_deployment_that_fails_leaves_the_excerpts(tmp_path: Path, settings: dict[str, Any]) -> None:
    turns = [searches(PLATE), http_error(400), repeats_the_tool]
    async with product(*turns, tmp_path=tmp_path, **settings) as p:
        answer = await asked_about_the_manual(p, PLATE, SHORT)
    assert "could not write an answer" in answer.content
    assert "warm soapy water" in answer.content


async def test_the_tool_is_offered_unless_switched_off_and_names_the_interpreter_for_counting(tmp_path: Path) -> None:
    for url, mentioned in (("http://127.0.0.1:1/mcp", True), (None, False)):
        async with product(says("Hi."), tmp_path=tmp_path / str(mentioned), pyinterpreter_mcp_url=url) as p:
            await p.reader.ask("Hi")
        [tool] = [t["function"] for t in p.upstream.requests[0].body["tools"] if t["function"]["name"] == RAG]
        assert ("use execute_code" in tool["description"]) == mentioned
        assert tool["parameters"]["required"] == ["request", "file_url"]

    async with product(says("Hi."), tmp_path=tmp_path, rag={"enabled": False}) as p:
        await p.reader.ask("Hi")
    assert RAG not in p.upstream.requests[0].tools


@pytest.mark.fault("search in documents: a caller who leaves while a file is indexed")
@pytest.mark.system
async def test_a_person_who_leaves_stops_the_indexing(tmp_path: Path, settings: dict[str, Any]) -> None:
    long = "\n\n".join(
        f"Paragraph {n}. " + f"The door seal number {n} is checked in spring. " * 10 for n in range(2000)
    )
    async with product(searches(PLATE), tmp_path=tmp_path, **settings) as p:
        file = await p.reader.upload("long.txt", long.encode(), "text/plain")
        async for answer in p.reader.watch(PLATE, file):
            if answer.stages and " %" in answer.stages[0].content:
                assert await embedding(p, 1)
                break
        await until(lambda: embedding(p, 0), 20)


async def embedding(p: Product, number: int) -> bool:
    """Whether so many requests wait for the embedding model, or are with it."""
    async with ClientSession(p.agent_url) as session, session.get("/metrics") as response:
        return f'dial_agent_queue{{queue="embedding"}} {number}.0\n' in await response.text()


@pytest.fixture
def looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings with which loading the model leaves a file, and ends at once."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return {"rag": {"weights": tmp_path / "weights"}, "embedding_model": "", "dial_api_key": API_KEY}


@pytest.mark.parametrize("path", ["/chat", "/v1/chat/completions", "/v1/responses"])
async def test_the_embedding_model_is_loaded_when_a_document_is_attached_at_any_door(
    path: str, tmp_path: Path, looked_for: dict[str, Any]
) -> None:
    async with (
        product(says("Thanks."), tmp_path=tmp_path, **looked_for) as p,
        ClientSession() as session,
    ):
        api = Api(p.agent_url, p.upstream, session)
        file = await uploaded(api, "manual.txt", SHORT.encode(), "text/plain")
        part = {"type": "file", "file": {"file_id": file["id"]}}
        if path == "/v1/responses":
            parts = [{"type": "input_text", "text": "Keep this."}, {"type": "input_file", "file_id": file["id"]}]
            body: dict[str, Any] = {"input": [{"role": "user", "content": parts}]}
        else:
            body = {"messages": [said("Keep this.") | {"content": [{"type": "text", "text": "Keep this."}, part]}]}
        assert (await api.post(path, body)).status == 200
        await until((tmp_path / LOADING).exists)


async def test_in_dial_chat_it_is_loaded_for_a_document_and_for_nothing_else(
    tmp_path: Path, looked_for: dict[str, Any]
) -> None:
    async with product(says("Hi."), says("A cat."), says("Thanks."), tmp_path=tmp_path, **looked_for) as p:
        await p.reader.ask("Hello")
        await p.reader.ask("What is this?", await p.reader.upload("cat.png", b"png", "image/png"))
        assert not (tmp_path / LOADING).exists()
        await p.reader.ask("Keep this.", await p.reader.upload("manual.txt", SHORT.encode(), "text/plain"))
        await until((tmp_path / LOADING).exists)


async def test_the_documented_constructor_is_enough(tmp_path: Path) -> None:
    """Without any seam the tool brings its own files, readers, embedder and model."""
    async with product(says("It lasts 24 months [1]."), tmp_path=tmp_path) as p:
        file = await p.reader.upload("w.txt", b"The warranty lasts 24 months.", "text/plain")
        tool = RagTool(p.core.url, MODEL, DocumentCache.create())
        choice = RecordingChoice()
        message = await called(
            tool, api_key="key-one", choice=choice, request="How long is the warranty?", file_url=file["url"]
        )
        await tool.close()
    assert message.text().startswith("It lasts 24 months [1].")
    assert "## Generating response" in choice.stages[0].content


@pytest.mark.fault("search in documents: a PDF of 2,000 pages")
@pytest.mark.system
@pytest.mark.usefixtures("weights")
async def test_a_pdf_of_2000_pages_is_searched_with_the_right_page() -> None:
    content = text_pdf(2000, 3)
    readers, embedder = ReaderPool(), Embedder()
    files = MemoryFiles({"files/b/long.pdf": content})
    shelf = Shelf(Readings(files, readers, max_size=len(content)), embedder, DocumentCache.create())
    opened = await shelf.open("files/b/long.pdf", caller_of("ann", "chat", "key"))
    index = await shelf.indexed(opened, lambda progress: None)
    await readers.close()
    pages = [chunk.place.page for chunk in index.chunks]
    assert (pages[0], pages[-1]) == (1, 2000)
    assert len(set(pages)) == 2000
