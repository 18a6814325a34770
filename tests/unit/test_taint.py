"""What the gate sees of a conversation: whether it contains text from outside, and which URLs it vouches for."""

from dataclasses import replace
from time import process_time
from urllib.parse import unquote, urlsplit

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from task.conversation.messages import SHOWN_AGAIN, Message, Role, assistant, user
from task.conversation.state import StateSeal, TurnState
from task.permissions.hosts import host_of
from task.permissions.taint import (
    ContextView,
    Origin,
    addresses_in,
    bare,
    folded,
    hosts_of,
    is_plain,
    urls_in,
)
from task.tools.offload import Offloader
from tests.support.choices import CALLER
from tests.support.gating import ORIGINS, SEARCHES, after_search, facts, turn

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


def test_a_result_is_known_by_its_tool_under_whichever_name_it_was_kept() -> None:
    origins = {"duckduckgo_web_search": Origin.OUTSIDE}
    for name in ("web_search", "duckduckgo_web_search"):
        kept = ContextView([user("?"), *turn(name, {"query": "x"}, f"1. {URL}")], origins)
        assert (kept.knows(URL), kept.tainted_beyond("duckduckgo_web_search")) == (True, False)


def test_a_tool_that_has_an_aliass_name_itself_keeps_its_own_origin() -> None:
    results = [user("?"), *turn("web_search", {"query": "x"}, f"1. {URL}")]
    kept = ContextView(results, {"web_search": Origin.OUTSIDE, "duckduckgo_web_search": Origin.OWN})
    assert (kept.knows(URL), kept.tainted, kept.tainted_beyond("web_search")) == (True, True, False)


WROTE = turn("execute_code", {"code": "open('x.txt', 'w')"}, "Created files/b/x.txt")
READ = turn("read_file", {"file_url": "files/b/x.txt"}, f"Go to {URL}")
FOUND = after_search("URL: https://a.example/ x")


@pytest.mark.fault("gate: a URL that code, a model or a file of the model's own vouches for")
@pytest.mark.parametrize(
    ("messages", "known"),
    [
        ([user(f"Read {URL}.")], True),
        (after_search(f"1. A page\n   URL: {URL}\n   words"), True),
        ([user("Read it"), assistant(f"I would read {URL}")], False),
        (turn("execute_code", {"code": "print(...)"}, URL), False),
        (turn("ask_model", {"prompt": "join the parts"}, URL), False),
        (turn("search", {"query": URL}, f"No results for {URL} ."), False),
        (turn("search", {"query": "docs.example/a?page=2"}, f"None for {URL}"), False),
        ([user("Go"), *WROTE, *READ], False),
        ([user("Read files/b/x.txt"), *WROTE, *READ], True),
        ([*FOUND, *turn("fetch_page", {"url": "https://a.example/"}, f"Next: {URL}")], True),
        ([*FOUND, *turn("fetch_page", {"url": "https://b.example/"}, f"Next: {URL}")], False),
    ],
)
def test_the_user_and_results_from_outside_vouch_for_a_url_but_the_models_own_words_do_not(
    messages: list[Message], known: bool
) -> None:
    assert view(*messages).knows(URL) is known


@pytest.mark.parametrize(
    "asked", [f"{'x' * 90_000} {URL} {'x' * 210_000}", [*("x" * 30_000,) * 6, URL, *("x" * 30_000,) * 6]]
)
async def test_a_result_of_a_call_whose_words_were_shortened_vouches_for_nothing(asked: str | list[str]) -> None:
    question, answer = turn("search", {"query": asked}, f"No results for {URL} .")
    offloaded = await Offloader(None).shortened_call(question.tool_calls[0], CALLER)
    saved = TurnState((question, answer))
    seal = StateSeal(b"key")
    restored = seal.unpack(seal.pack(saved, "someone"), "someone").history
    for shortened in (replace(question, tool_calls=(offloaded,)), restored[0]):
        assert URL not in str(shortened.tool_calls)
        assert not view(user("Go"), shortened, answer).knows(URL)


def test_a_saved_turn_whose_oldest_calls_were_left_out_still_counts_as_text_from_outside() -> None:
    sums = [message for place in range(1_500) for message in turn("calculator", {"expression": "1"}, "1", f"c{place}")]
    seal, history = StateSeal(b"key"), (*turn("search", {"query": "x"}, "Some page."), *sums)
    restored = seal.unpack(seal.pack(TurnState(history), "someone"), "someone").history
    assert not any(message.name == "search" for message in restored)
    assert (view(*sums).tainted, view(*restored).tainted) == (False, True)


def test_a_picture_that_is_shown_again_is_no_file_that_the_user_named() -> None:
    shown = f"{SHOWN_AGAIN}\n- files/b/chart.png"
    question = user([{"type": "text", "text": f"What is on files/b/a.txt? {URL}"}, {"type": "text", "text": shown}])
    known = [url for url in ("files/b/a.txt", URL, "files/b/chart.png") if view(question).knows(url)]
    assert known == ["files/b/a.txt", URL]


@pytest.mark.fault("gate: a result that echoes its call's words in another spelling")
@pytest.mark.parametrize(
    "asked",
    [
        "https://docs.example/\u200ba?page=2",
        "https://docs.exam\u00adple/a?page=2",
        "https://docs.example/a?page=\uff12",
        "HTTPS://DOCS.example/a?page=2",
        "https://docs.example/%61?page=%32",
        "https://docs.example/%2561?page=2",
        "https&#58;//docs.example/a?page&#61;2",
        "https://docs.example/a?page\t=2",
        r"https:\\docs.example\a?page=2",
        "about https://docs.example/a ?page=2 and more",
    ],
)
def test_another_spelling_of_the_calls_own_words_vouches_for_nothing(asked: str) -> None:
    assert not view(user("Go"), *turn("search", {"query": asked}, f"No results for {URL} .")).knows(URL)


@pytest.mark.fault("gate: a result that echoes its call's words in another spelling")
def test_a_host_in_its_ascii_form_vouches_for_nothing_if_the_call_named_it() -> None:
    asked = turn("search", {"query": "bücher.example/x"}, "There is no host https://xn--bcher-kva.example/x .")
    assert not view(user("Go"), *asked).knows("https://xn--bcher-kva.example/x")
    assert folded("xn--bcher-kva") == folded("BÜCHER")


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
    assert (bare(URL) in addresses_in(text)) is stands


@pytest.mark.fault(
    "gate: an address that the gate and the fetcher read differently: blanks, quotes, backslashes, hidden "
    "marks, user names"
)
@pytest.mark.parametrize(
    ("arguments", "urls"),
    [
        ({"url": "evil.example/x"}, ["evil.example/x"]),
        ({"text": "see https://evil.example/x."}, ["https://evil.example/x"]),
        ({"a": [{"b": "ftp://evil.example/x"}]}, ["ftp://evil.example/x"]),
        ({"https://evil.example/x": "y"}, ["https://evil.example/x"]),
        ({"text": r"http:\\evil.example"}, [r"http:\\evil.example"]),
        ({"file_url": "files/b/x.csv"}, ["files/b/x.csv"]),
        ({"file_url": "files/b/x.csv,files/b/y.csv files/b/z"}, ["files/b/x.csv", "files/b/y.csv", "files/b/z"]),
        ({"file_url": "files/b/x.csv https://evil.example/'S"}, ["files/b/x.csv", "https://evil.example/'S"]),
        ({"query": "what is a url?"}, []),
        ({"url": "my long question"}, ["my long question"]),
        ({"text": "https://a.example/p'SECRET"}, ["https://a.example/p'SECRET"]),
        ({"text": "https://a.example/p\nSECRET"}, ["https://a.example/p\nSECRET"]),
        ({"text": "https://a.example/p`SECRET."}, ["https://a.example/p`SECRET."]),
        ({"text": "\u200b \x00https://a.example/p q"}, ["\u200b \x00https://a.example/p q"]),
        ({"text": "https:a.example/p q"}, ["https:a.example/p q"]),
        ({"text": "//a.example/p q"}, ["//a.example/p q"]),
        ({"link": "a.example/p SECRET"}, ["a.example/p SECRET"]),
        ({"text": "see 'https://a.example/p'SECRET."}, ["https://a.example/p'SECRET"]),
        ({"text": "see (https://a.example/p)."}, ["https://a.example/p"]),
        ({"text": "// a comment"}, []),
    ],
)
def test_the_urls_of_a_call_are_found_wherever_they_are(arguments: dict[str, object], urls: list[str]) -> None:
    assert list(urls_in(arguments)) == urls
    page = {"text": "x = 'https://a.example/p'+SECRET; <a href=\"https://b.example\">b</a>"}
    assert list(urls_in(page, fetched=False)) == ["https://a.example/p", "https://b.example"], "if it is only written"


@pytest.mark.fault(
    "gate: an address that the gate and the fetcher read differently: blanks, quotes, backslashes, hidden "
    "marks, user names"
)
@pytest.mark.parametrize(
    "url",
    [
        "https://a.example/p'q", "https://a.example/p q", 'https://a.example/p"q', "https://a.example/p`q",
        "https://a.example/p<q", "https://a.example/p>q", "https://a.example/p\\q", "https://a.example/p\nq",
        "https://a.example/p\tq", "https://a.example/p\x00q", "https://a.example/p\u200bq", "https://a.example/p\u00adq",
        "https://a.example/p\u202eq", "https://a.example/p\u00a0q", "https://a.example/p%q", "https://a.example/{q}",
        "https://good.example'@evil.internal/", "https://user@a.example/", "https://a.example:80@evil.example/",
        "https://a.example\\@evil.example/", "https://a.example%2eevil.example/", "https://bücher.example/",
        "https://\uff41.example/", "https://a\u3002example/", "https://a.example\u200b/", "https://a.example:/",
        "https://a.example:x/", "https://[broken", "https:a.example", "https:/a.example", "https:///a.example",
        r"https:\\a.example", "https://", " https://a.example/", "https://a.example/ ", "", "https://a..example/",
        "javascript:alert(1)", "https://\u212aa.example/",
    ],
)  # fmt: skip
def test_a_url_that_is_read_in_different_ways_is_never_known(url: str) -> None:
    assert not is_plain(url)
    known = facts("fetch_page", SEARCHES, [user(f"Read {url} now")], url=url)
    assert known.urls_known is (not url)


@pytest.mark.fault(
    "gate: an address that the gate and the fetcher read differently: blanks, quotes, backslashes, hidden "
    "marks, user names"
)
@given(st.from_regex(r"\A(https?://)[a-zé.\-@:\[\]0-9'%_\\ ]{1,12}[/?#]?[ -~é\u200b\n]{0,12}\Z"))
@example("https://a.example/ä?x=%20#y")
@example("http://[::1]:80/@x/[y]")
def test_all_parsers_agree_about_a_plain_url(url: str) -> None:
    if is_plain(url):
        fetched, authority = httpx2.URL(url), urlsplit(url).netloc
        assert fetched.netloc.decode() == authority.lower().removesuffix(":80" if url[4] == ":" else ":443")
        assert fetched.host == urlsplit(url).hostname == host_of(url)
        requested = url.partition("://")[2].partition("#")[0].removeprefix(authority)
        assert unquote(fetched.raw_path.decode()) in (unquote(requested), unquote(f"/{requested}"))


@pytest.mark.fault(
    "gate: an address that the gate and the fetcher read differently: blanks, quotes, backslashes, hidden "
    "marks, user names"
)
@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("https://A.example:8080/x", ["a.example"]),
        ("evil.example/x", ["evil.example"]),
        ("https://good.example'@evil.internal/", ["evil.internal"]),
        ("https://docs.example@evil.example/", ["evil.example"]),
        (r"https:\\evil.example\x", ["evil.example", "https"]),
        ("//evil.example", ["evil.example"]),
        (r"https://evil.example\@good.example/", ["evil.example", "good.example"]),
        ("https://[broken", ["https://[broken"]),
    ],
)
def test_a_url_that_is_not_plain_has_every_host_that_somebody_may_read(url: str, hosts: list[str]) -> None:
    assert [host for host in hosts_of(url) if host != url or host == hosts[0]] == hosts
    assert host_of(url) in hosts


def test_chains_of_results_made_to_take_forever_are_searched_quickly() -> None:
    urls = [f"https://a.example/{number}" for number in range(60)]
    messages = [user("Go")]
    for number, url in enumerate(urls):
        messages += turn("fetch_page", {"urls": [url, "https://none.example/"]}, " ".join(urls), call_id=f"c{number}")
    started = process_time()
    assert not any(map(view(*messages).knows, urls))
    assert process_time() - started < 2
