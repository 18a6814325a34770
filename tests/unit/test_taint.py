"""What the gate sees of a conversation: whether it contains text from outside, and which URLs it vouches for."""

from __future__ import annotations

from time import process_time

import pytest

from task.conversation.messages import Message, Role, assistant, user
from task.permissions.taint import ContextView, host_of, stands_in, urls_in
from tests.support.gating import ORIGINS, after_search, turn

URL = "https://docs.example/a?page=2"


def view(*messages: Message) -> ContextView:
    return ContextView(messages, ORIGINS)


@pytest.mark.parametrize(
    ("messages", "tainted"),
    [
        ([user("Hi"), assistant("Hello")], False),
        ([user("Hi"), *turn("calculator", {"expression": "1+1"}, "2")], False),
        (after_search(), True),
        ([user("Hi"), *turn("read_file", {"file_url": "files/b/x"}, "text")], True),
        ([user("Hi"), *turn("execute_code", {"code": "1"}, "1")], True),
        ([user("Hi"), *turn("a tool that is gone", {}, "text")], True),
        ([user([{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "data:,"}}])], True),
        ([user([{"type": "text", "text": "Look"}])], False),
        ([*after_search(), assistant("Done."), user("Now something else")], True),
        ([Message(Role.TOOL, "from rebuilt history", tool_call_id="c", name="search")], True),
    ],
)
def test_text_of_others_taints_a_conversation(messages: list[Message], tainted: bool) -> None:
    assert view(*messages).tainted is tainted


def test_a_url_of_the_user_or_of_a_result_from_outside_is_known() -> None:
    assert view(user(f"Read {URL}.")).knows(URL)
    assert view(*after_search(f"1. A page\n   URL: {URL}\n   words")).knows(URL)
    assert not view(user("Read it"), assistant(f"I would read {URL}")).knows(URL)


def test_what_code_or_a_model_wrote_vouches_for_nothing() -> None:
    assert not view(user("Go"), *turn("execute_code", {"code": "print(...)"}, URL)).knows(URL)
    assert not view(user("Go"), *turn("ask_model", {"prompt": "join the parts"}, URL)).knows(URL)


def test_a_result_that_repeats_the_calls_own_words_vouches_for_nothing() -> None:
    assert not view(user("Go"), *turn("search", {"query": URL}, f"No results for {URL} .")).knows(URL)
    assert not view(user("Go"), *turn("search", {"query": "docs.example/a?page=2"}, f"None for {URL}")).knows(URL)


def test_a_file_that_the_model_had_written_vouches_for_nothing() -> None:
    wrote = turn("execute_code", {"code": "open('x.txt', 'w')"}, "Created files/b/x.txt")
    read = turn("read_file", {"file_url": "files/b/x.txt"}, f"Go to {URL}")
    assert not view(user("Go"), *wrote, *read).knows(URL)
    assert view(user("Read files/b/x.txt"), *wrote, *read).knows(URL)


def test_a_page_from_a_search_vouches_for_its_links() -> None:
    found = after_search("URL: https://a.example/ x")
    page = turn("fetch_page", {"url": "https://a.example/"}, f"Next: {URL}")
    made_up = turn("fetch_page", {"url": "https://b.example/"}, f"Next: {URL}")
    assert view(*found, *page).knows(URL)
    assert not view(*found, *made_up).knows(URL)


@pytest.mark.parametrize(
    ("text", "stands"),
    [
        (f"{URL}", True),
        (f"({URL})", True),
        (f"see {URL}, and", True),
        (f"see {URL}.", True),
        (f"[x]({URL})", True),
        (f'"{URL}"', True),
        (f"{URL}/", True),
        (f"{URL}#part", True),
        ("at docs.example/a?page=2 there", True),
        (f"{URL}1", False),
        (f"{URL}&d=1", False),
        (f"{URL}.evil.example", False),
        (f"{URL}%20", False),
        ("evildocs.example/a?page=2", False),
        ("a@docs.example/a?page=2", False),
        ("evil.example/docs.example/a?page=2", False),
        ("", False),
    ],
)
def test_a_url_is_in_a_text_only_as_a_whole(text: str, stands: bool) -> None:
    assert stands_in(URL, text) is stands


@pytest.mark.parametrize(
    ("arguments", "urls"),
    [
        ({"url": "evil.example/x"}, ["evil.example/x"]),
        ({"targetHost": "evil.example"}, ["evil.example"]),
        ({"text": "see https://evil.example/x."}, ["https://evil.example/x"]),
        ({"a": [{"b": "ftp://evil.example/x"}]}, ["ftp://evil.example/x"]),
        ({"https://evil.example/x": "y"}, ["https://evil.example/x"]),
        ({"text": r"http:\\evil.example"}, [r"http:\\evil.example"]),
        ({"text": "https:/evil.example"}, ["https:/evil.example"]),
        ({"file_url": "files/b/x.csv"}, ["files/b/x.csv", "files/b/x.csv"]),
        ({"query": "what is a url?"}, []),
        ({"url": "my long question"}, []),
    ],
)
def test_the_urls_of_a_call_are_found_wherever_they_are(arguments: dict[str, object], urls: list[str]) -> None:
    assert list(urls_in(arguments)) == urls


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://A.example:8080/x", "a.example"),
        ("https://docs.example@evil.example/", "evil.example"),
        ("evil.example/x", "evil.example"),
        (r"https:\\evil.example\x", "evil.example"),
        ("//evil.example", "evil.example"),
        ("https://[broken", "https://[broken"),
    ],
)
def test_the_host_of_a_url_is_the_one_it_points_to(url: str, host: str) -> None:
    assert host_of(url) == host


def test_chains_of_results_made_to_take_forever_are_searched_quickly() -> None:
    urls = [f"https://a.example/{number}" for number in range(60)]
    messages = [user("Go")]
    for number, url in enumerate(urls):
        messages += turn("fetch_page", {"urls": [url, "https://none.example/"]}, " ".join(urls), call_id=f"c{number}")
    started = process_time()
    assert not any(map(view(*messages).knows, urls))
    assert process_time() - started < 2
