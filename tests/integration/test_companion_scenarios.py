"""Scenarios in which one tool's result becomes another's work: search, Python and pictures, all real, in DIAL Chat."""

import re
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import Reply, says, wants
from tests.support.image_deployment import PNG, image_deployment
from tests.support.interpreter import TOKEN, RunningInterpreter, running_interpreter
from tests.support.mcp_processes import search_server
from tests.support.product import Product, product
from tests.support.search_site import EIFFEL, FOUNDER, PARIS, QUILLHAVEN, Site, search_site
from tests.support.upstream import Item, Received

SEARCH, IMAGE = "duckduckgo_web_search", "image_generation_tool"


pytestmark = pytest.mark.usefixtures("chat")


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningInterpreter]:
    with running_interpreter(tmp_path_factory.mktemp("interpreter"), "--spares", "0", "--bare") as running:
        yield running


def found(received: Received) -> str:
    """The text of the first search result that the conversation holds."""
    results = "\n".join(str(message["content"]) for message in received.messages if message["role"] == "tool")
    hit = re.search(r"^1\. (.*)\n   URL: \S+\n   (.*)$", results, re.MULTILINE)
    assert hit is not None, results
    return f"{hit[1]}: {hit[2]}"


def paints(style: str) -> Callable[[Received], Reply]:
    return lambda received: wants(IMAGE, prompt=f"{style} {found(received)}")


@asynccontextmanager
async def companions(folder: Path, *turns: Item, **settings: Any) -> AsyncGenerator[tuple[Product, Site]]:
    """The product with the search server before its site, and with an image deployment."""
    async with search_site() as site, image_deployment() as images:
        with search_server(site.url, token=TOKEN) as server:
            settings |= {"ddg_mcp_url": server.url, "mcp_token": TOKEN}
            async with product(*turns, tmp_path=folder, models=images.models, **settings) as p:
                images.core = p.core.url
                yield p, site


async def test_11_the_picture_of_the_second_turn_shows_the_weather_that_the_first_one_found(tmp_path: Path) -> None:
    first = [wants(SEARCH, query="weather in Paris"), lambda received: says(found(received))]
    second = [paints("A street under this weather."), says("Here it is.")]
    async with companions(tmp_path, *first, *second) as (p, site):
        weather = await p.reader.ask("What's the weather in Paris?")
        answer = await p.reader.ask("Generate an image representing that weather")
        [picture] = answer.attachments.values()
        status, content = await p.reader.get(picture["url"])
        foreign, _ = await p.other.get(picture["url"])
    assert weather.content == f"{PARIS[0]}: {PARIS[2]}"
    assert f"**Prompt**: A street under this weather. {PARIS[0]}: {PARIS[2]}" in answer.stages[0].content
    assert [stage.status for stage in answer.stages.values()] == ["completed"]
    assert (status, content, foreign) == (200, PNG, 403)
    assert (answer.content, site.queries) == ("Here it is.", ["weather in Paris"])


async def test_18_an_artistic_image_is_made_of_what_the_search_has_found(tmp_path: Path) -> None:
    question, known = "Search for the Eiffel Tower and generate an artistic image of it", EIFFEL
    turns = [wants(SEARCH, query="Eiffel Tower"), paints("An oil painting of"), says("Painted.")]
    async with companions(tmp_path, *turns) as (p, _):
        answer = await p.reader.ask(question)
        [picture] = [item for item in answer.attachments.values() if item.get("url")]
        status, content = await p.reader.get(picture["url"])
    searched, painted = answer.stages.values()
    assert [searched.status, painted.status] == ["completed", "completed"]
    assert known[2] in searched.content
    assert f"**Prompt**: An oil painting of {known[0]}: {known[2]}" in painted.content
    assert [item["url"] for item in painted.attachments if item.get("url")] == [picture["url"]]
    assert (status, content, picture["type"]) == (200, PNG, "image/png")
    assert answer.content == "Painted."


async def test_a_picture_comes_before_the_pages_that_the_answer_cites_and_only_those_come(tmp_path: Path) -> None:
    def painted(received: Received) -> Reply:
        places.append(numbers_of(received))
        return wants(SEARCH, query="weather in Paris") & wants(IMAGE, prompt="A lighthouse in the rain")

    def cites(received: Received) -> Reply:
        places.append(numbers_of(received))
        number = places[-1]
        return says(f"Founded in 1871 [{number[FOUNDER[1]]}]. In Paris it rains [{number[PARIS[1]]}].")

    def numbers_of(received: Received) -> dict[str, str]:
        results = "\n".join(str(message["content"]) for message in received.messages if message["role"] == "tool")
        return dict(re.findall(r"   URL: (\S+)\n.*\n   Cite as \[(\d+)\]\.$", results, re.MULTILINE))

    places: list[dict[str, str]] = []
    turns = [wants(SEARCH, query="quillhaven"), painted, cites, says("Rain [3] and light rain [1].")]
    async with companions(tmp_path, *turns) as (p, _):
        answer = await p.reader.ask("Tell me about the lighthouse and the weather, with a picture.")
        later = await p.reader.ask("And the weather?")
    assert places == [
        {QUILLHAVEN[1]: "1", FOUNDER[1]: "2"}, {QUILLHAVEN[1]: "1", FOUNDER[1]: "2", PARIS[1]: "3"}
    ]  # fmt: skip
    picture, founder, paris = answer.attachments.values()
    assert picture["type"] == "image/png"
    assert founder == {
        "type": "text/markdown", "title": f"[2] {FOUNDER[0]}", "data": FOUNDER[2], "reference_url": FOUNDER[1]
    }  # fmt: skip
    assert (paris["title"], paris["reference_url"]) == (f"[3] {PARIS[0]}", PARIS[1])
    assert [item["title"] for item in later.attachments.values()] == [f"[1] {QUILLHAVEN[0]}", f"[3] {PARIS[0]}"]


async def test_web_results_are_used_in_code_and_then_in_a_picture(
    interpreter: RunningInterpreter, tmp_path: Path
) -> None:
    def in_feet(received: Received) -> Reply:
        metres = re.search(r"(\d+) metres", found(received))
        assert metres is not None
        return wants("execute_code", code=f"open('height.txt', 'w').write(str(round({metres[1]} / 0.3048)))")

    async def file(title: str) -> bytes:
        [url] = [item["url"] for item in answer.attachments.values() if item["title"] == title]
        return (await p.reader.get(url))[1]

    turns = [wants(SEARCH, query="Eiffel Tower"), in_feet, paints("A ruler beside"), says("1083 feet.")]
    async with companions(tmp_path, *turns, pyinterpreter_mcp_url=interpreter.url) as (p, _):
        answer = await p.reader.ask("How tall is the Eiffel Tower in feet? Draw it beside a ruler.")
        assert await file("height.txt") == b"1083"
    assert {stage.status for stage in answer.stages.values()} == {"completed"}
    assert sum(item["type"] == "image/png" for item in answer.attachments.values()) == 1
