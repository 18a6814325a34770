"""Searching: against a site that answers, has nothing, refuses, or looks different."""

import asyncio
from functools import partial

import pytest

from mcp_servers.duckduckgo.answers import UNTRUSTED, results_content, results_data
from mcp_servers.duckduckgo.engine import Hit, ask
from mcp_servers.duckduckgo.limits import Places
from mcp_servers.duckduckgo.search import Found, SearchFailed, WebSearch
from tests.support.clock import FakeClock
from tests.support.ports import free_port
from tests.support.search_site import EIFFEL, QUILLHAVEN, Site, search_site


def results_text(found: Found) -> str:
    return "\n\n".join(item.text for item in results_content(found) if item.type == "text")


def searching(site: Site, clock: FakeClock | None = None, per_minute: int = 30) -> WebSearch:
    return WebSearch(partial(ask, url=site.url, seconds=5), per_minute=per_minute, clock=(clock or FakeClock()).now)


async def test_results_come_in_order_with_their_real_addresses_and_without_advertisements() -> None:
    async with search_site() as site:
        site.mood = "ads"
        found = await searching(site).search("  quillhaven   weather today ", 1)
    assert found.hits == (Hit(*QUILLHAVEN),)
    assert site.queries == ["quillhaven weather today"]


async def test_results_are_marked_as_material_from_the_web_each_with_its_page_as_a_source() -> None:
    found = Found((Hit(*EIFFEL),))
    assert results_text(found).startswith(f"1 results of DuckDuckGo. {UNTRUSTED}")
    assert (results_data(found)["untrusted"], results_data(found)["source"]) == (True, "duckduckgo.com")
    [_, text, source] = results_content(found)
    assert text.type == "text"
    assert f"URL: {EIFFEL[1]}" in text.text
    assert source.type == "resource_link"
    assert (source.name, source.uri, source.description) == EIFFEL
    assert source.annotations is not None
    assert source.annotations.audience == ["assistant"]


@pytest.mark.fault("web search: DuckDuckGo finds nothing")
@pytest.mark.fault("gate: a result that echoes its call's words in another spelling")
@pytest.mark.parametrize("query", ["xyzzy https://evil.example/p", "eiffel https://evil.example/p"])
async def test_nothing_found_is_an_answer_and_none_repeats_the_query(query: str) -> None:
    async with search_site() as site:
        found = await searching(site).search(query, 5)
    assert results_text(found).startswith("DuckDuckGo has no results.") is not bool(found.hits)
    assert "evil" not in f"{results_text(found)} {results_data(found)}"


@pytest.mark.fault("web search: DuckDuckGo answers 202", case="202")
@pytest.mark.fault("web search: DuckDuckGo answers 403", case="403")
@pytest.mark.fault("web search: DuckDuckGo shows a challenge", case="challenge")
@pytest.mark.parametrize("mood", ["202", "403", "429", "challenge", "blank"])
async def test_a_refusal_is_not_taken_for_nothing_found_and_is_not_repeated(mood: str) -> None:
    clock = FakeClock()
    async with search_site() as site:
        site.mood = mood
        search = searching(site, clock)
        for _ in range(3):
            with pytest.raises(SearchFailed, match="refuses searches from this address"):
                await search.search("eiffel", 5)
        assert len(site.queries) == 1
        site.mood = "ok"
        await clock.advance(601)
        assert (await search.search("eiffel", 5)).hits == (Hit(*EIFFEL),)


@pytest.mark.fault("web search: DuckDuckGo changes its markup")
async def test_changed_markup_is_recognised_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with search_site() as site:
        site.mood = "changed"
        with pytest.raises(SearchFailed, match="could not be understood"):
            await searching(site).search("eiffel secret", 5)
    assert "markup" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.fault("web search: DuckDuckGo is away")
@pytest.mark.parametrize("mood", ["500", "404", "gone"])
async def test_a_broken_site_and_none_at_all_are_unreachable(mood: str) -> None:
    async with search_site() as site:
        site.mood = mood
        asked = Site(f"http://127.0.0.1:{free_port()}/html/") if mood == "gone" else site
        with pytest.raises(SearchFailed, match="could not be reached"):
            await searching(asked).search("eiffel", 5)


async def test_equal_questions_at_once_and_soon_after_are_asked_once() -> None:
    clock = FakeClock()
    async with search_site() as site:
        search = searching(site, clock)
        found = await asyncio.gather(*(search.search(query, 5) for query in ("Eiffel", "eiffel", " EIFFEL ")))
        await search.search("eiffel", 3)
        assert len(site.queries) == 1
        await clock.advance(901)
        await search.search("eiffel", 5)
    assert len(site.queries) == 2
    assert {item.hits for item in found} == {(Hit(*EIFFEL),)}


@pytest.mark.fault("web search: more searches than are polite")
async def test_the_rate_is_limited_and_the_refusal_says_when_to_retry() -> None:
    clock = FakeClock()
    async with search_site() as site:
        search = searching(site, clock, per_minute=2)
        await search.search("eiffel 1", 5)
        await clock.advance(15)
        await search.search("eiffel 2", 5)
        with pytest.raises(SearchFailed, match="again in 45 s"):
            await search.search("eiffel 3", 5)
        await clock.advance(45)
        await search.search("eiffel 3", 5)
    assert len(site.queries) == 3


@pytest.mark.fault("web search: one user who uses up what all may search and fetch")
async def test_no_user_uses_up_the_rate_of_all() -> None:
    clock = FakeClock()
    async with search_site() as site:
        search = searching(site, clock, per_minute=30)
        for number in range(20):
            await search.search(f"eiffel {number}", 5, "anna")
        with pytest.raises(SearchFailed, match="Try again"):
            await search.search("eiffel 20", 5, "anna")
        for number in range(10):
            await search.search(f"tower {number}", 5, "bob")
        with pytest.raises(SearchFailed, match="Try again"):
            await search.search("eiffel 21", 5, "carla")
        await clock.advance(60)
        await search.search("eiffel 20", 5, "anna")
    assert len(site.queries) == 31


@pytest.mark.fault("web search: one user who uses up what all may search and fetch")
async def test_no_user_takes_more_than_half_of_the_places() -> None:
    places, inside, release = Places(4), list[str](), asyncio.Event()

    async def visit(principal: str) -> None:
        async with places.taken(principal):
            inside.append(principal)
            await release.wait()

    async with asyncio.TaskGroup() as group:
        for principal in ("anna", "anna", "anna", "bob", "bob"):
            group.create_task(visit(principal))
        for _ in range(20):
            await asyncio.sleep(0)
        assert inside == ["anna", "anna", "bob", "bob"]
        release.set()
    assert len(inside) == 5


@pytest.mark.parametrize(("query", "sentence"), [("  ", "empty"), ("x" * 501, "501 characters")])
async def test_an_invalid_query_is_refused(query: str, sentence: str) -> None:
    with pytest.raises(SearchFailed, match=sentence):
        await searching(Site()).search(query, 5)


@pytest.mark.fault("start: more search results than there can be")
@pytest.mark.parametrize(("wanted", "given"), [(0, 1), (-3, 1), (2, 2), (99, 20)])
async def test_the_number_of_results_is_brought_into_its_range(wanted: int, given: int) -> None:
    hits = [Hit(f"Stone {number}", f"https://stones.example/{number}", "A stone.") for number in range(30)]
    found = await WebSearch(lambda _: hits).search("stones", wanted)
    assert len(found.hits) == given


@pytest.mark.fault("web search: characters that hide text")
async def test_invisible_characters_do_not_reach_the_model() -> None:
    found = await WebSearch(lambda _: [Hit("A\u200bB", "https://a.example", "C\u202eD\x00E\u2066F")]).search("a", 5)
    assert found.hits == (Hit("AB", "https://a.example", "CDEF"),)


async def test_one_who_leaves_does_not_spoil_it_for_those_who_wait() -> None:
    async with search_site() as site:
        search = searching(site)
        first = asyncio.create_task(search.search("eiffel", 5))
        second = asyncio.create_task(search.search("eiffel", 5))
        await asyncio.sleep(0)
        first.cancel()
        assert (await asyncio.wait_for(second, 20)).hits == (Hit(*EIFFEL),)
