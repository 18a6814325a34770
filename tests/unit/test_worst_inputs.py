"""What reads text from outside takes linear time, whatever it does around its regular expressions."""

import gc
from collections.abc import Callable, Generator
from time import thread_time
from typing import NamedTuple

import pytest

from task.api.markdown import blocks_of
from task.approvals.approvals import _decision
from task.conversation.sources import Sources
from task.dial.citations import Citations
from task.documents.html import letters
from task.documents.xlsx import shown_as
from task.llm.call_texts import OfferedTools
from task.llm.text_calls import TextScanner
from task.output.charts import _inert
from task.permissions.arguments import addresses, command_lines, sent_length
from task.permissions.hosts import is_address, normalised
from task.permissions.icerc import Brief, _numbers
from task.permissions.taint import addresses_in, folded, is_plain, urls_in
from task.search.answers import _parted, _renumbered, literal, markers, statements, without_markers
from task.tools.py_interpreter.execution import Execution, outcome
from tests.benchmarks.figures import slowness
from tests.support.parsers import IMPORTS, LISTED, PARSERS
from tests.support.patterns import ENDS, ROOT, modules, patterns

LENGTH = 100_000
MEASURABLE = 0.01  # seconds
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def scanned(text: str) -> None:
    scanner = TextScanner(OfferedTools([TOOL]), ())
    for start in range(0, len(text), 50):
        list(scanner.feed(text[start : start + 50]))
    list(scanner.close())


def tagged(text: str) -> None:
    sources = Sources()
    for number in range(10):
        sources.citation(sources.number(number), "Page", data="Words.", reference_url="https://a.example/")
    Citations(lambda _: None, sources).tagged([text])


def rendered(text: str) -> None:
    blocks_of(text[:40_000])  # each mark of it is a token: a linear cost, and a high one


# What reads a text, how the text begins, what is repeated in it, and how it ends.
CASES: dict[str, tuple[Callable[[str], object], str, str, str]] = {
    "brief, newlines": (Brief.read, "x", "\n", "x"),
    "brief, marks": (Brief.read, "", "\n*#> -", "x"),
    "brief, headings": (Brief.read, "", "intent ", ""),
    "numbers": (_numbers, "", "1,", "a"),
    "URLs, schemes": (lambda text: list(urls_in({"a": text})), "", "a+", "://"),
    "URLs, many": (lambda text: list(urls_in({"a": text})), "", "'a://", ""),
    "plain URL": (is_plain, "https://", "a.", "/ "),
    "spellings": (folded, "", "%2525&amp;amp;xn--", "\u200b"),
    "addresses, schemes": (addresses_in, "", "http://", ""),
    "addresses, brackets": (addresses_in, "", "a)", ""),
    "addresses, pairs": (addresses_in, "", "(a)", "."),
    "addresses, commas": (addresses_in, "", "a.b,", ""),
    "addresses, long": (addresses_in, "https://a.example/", "a*", ""),
    "address, names": (is_address, "", "a.", "com"),
    "address, users": (is_address, "", "@a", ":"),
    "address, numbers": (is_address, "", "1.", "1:1"),
    "address, percent": (is_address, "", "%2525", ""),
    "host": (normalised, "", "\u3002\u00fc", ""),
    "host, digits": (normalised, "0x", "f", ""),
    "words": (lambda text: list(addresses({"a": text})), "", "a.com,", ""),
    "commands": (lambda text: command_lines({"args": text.split(), "run": text}, executes=True), "", "x ", ""),
    "sent": (lambda text: sent_length({"a": {text: [text]}}, ()), "", "\u2028", ""),
    "decision, blanks": (_decision, "approve", " ", "x"),
    "code, newlines": (lambda text: outcome(Execution(files_path="", stdout=text), [], []), "", "\n", "x"),
    "code, fences": (lambda text: outcome(Execution(files_path="", stdout=text), [], []), "", " \n``", "x"),
    "quotes, newlines": (_parted, "", "\n", "x"),
    "quotes, marks": (_parted, "quotes\n", "\n-", "x"),
    "quotes, heads": (_parted, "quotes", "\n*_", "x"),
    "marker, stops": (lambda text: _renumbered(text, [1]), "", ".x…….", "x"),
    "marker, many stops": (lambda text: _renumbered(text, [1]), "", ".", "x"),
    "marker, blanks": (lambda text: _renumbered(text, [1]), "x", " ", "x"),
    "markers": (markers, "", "\n ", "["),
    "markers, open": (markers, "", "[1, ", ""),
    "cited, numbers": (Sources().cited, "[", "1, ", "x"),
    "cited, open": (Sources().cited, "", "[1, ", ""),
    "cited, ranges": (Sources().cited, "", "[1-9999]", ""),
    "cited, code": (Sources().cited, "", "``` `", ""),
    "tags, markers": (tagged, "", "[1-9] ", ""),
    "tags, open": (tagged, "", "[1", ""),
    "no markers": (without_markers, "", " \t", ""),
    "sentences, abbreviations": (statements, "", "e.g. ", ""),
    "sentences, numbers": (statements, "", ".\n 1. ", ""),
    "sentences, markers": (statements, ".", " [1]", "["),
    "sentences, blanks": (statements, ".", " ", "["),
    "quote, blanks": (lambda text: literal(text, "x"), "x", " ", "x"),
    "quote, gaps": (lambda text: literal(text, "x"), "x", "[…", "x"),
    "HTML, links": (letters, "", "](http:", ""),
    "HTML, pictures": (letters, "", "[image: ", ""),
    "format, brackets": (shown_as, "", "[", ""),
    "format, currencies": (shown_as, "", "[$", ""),
    "format, quotes": (shown_as, "", '"\\"', ""),
    "text calls, brackets": (scanned, "", "{", ""),
    "text calls, squares": (scanned, "", "[ ", ""),
    "text calls, tags": (scanned, "", "<tool_call>", ""),
    "text calls, open tags": (scanned, "", "<tool", ""),
    "text calls, backticks": (scanned, "", "`", ""),
    "text calls, fences": (scanned, "", "```\n", ""),
    "text calls, blanks": (scanned, "{", " ", '"name": "f"'),
    "text calls, heads": (scanned, "", '{"name": "f", ', ""),
    "text calls, strings": (scanned, '{"name": "f", "arguments": {"a": "', "\\n", ""),
    "text calls, calls": (scanned, "", '{"name": "f", "arguments": {}}\n', ""),
    "text calls, wrong calls": (scanned, "", '{"name": "f", "arguments": []}\n', ""),
    "text calls, Python": (scanned, "<|python_tag|>f(", "'''", ""),
    "text calls, parameters": (scanned, "<function=f>", "<parameter=a>", "</function>"),
    "Markdown, tasks": (rendered, "", "- [ ] a\n", ""),
    "Markdown, addresses": (rendered, "", "http://a.b/(", ""),
    "Markdown, addresses in paragraphs": (rendered, "", "http://a.b/(" * 80 + "\n\n", ""),
    "Markdown, schemes": (rendered, "", "a." * 1_900 + "://\n\n", ""),
    "Markdown, brackets": (rendered, "", "[" * 270 + "\n\n", ""),
    "Markdown, closed brackets": (rendered, "", "[a" * 160 + "]" * 160 + "\n\n", ""),
    "Markdown, other addresses": (rendered, "", "ftp://a.b/" * 80 + "\n\n", ""),
    "Markdown, emphasis": (rendered, "", "*a_ " * 900 + "\n\n", ""),
    "Markdown, ticks": (rendered, "", "".join("`" * length + " " for length in range(80)) + "\n\n", ""),
    "Markdown, formulas": (rendered, "", "$a" * 1_900 + "\n\n", ""),
    "Markdown, table": (rendered, "|" * 5_000 + "\n" + "|-" * 4_999 + "|\n", "|\n", ""),
    "Markdown, tables": (rendered, "", "|" * 101 + "\n" + "|-" * 100 + "|\n" + "|\n" * 600 + "\n", ""),
    "Markdown, definitions": (rendered, "", "[a]: b\n", ""),
    "Markdown, quotes": (rendered, "", ">" * 30 + "a\n", ""),
    "chart, tags": (_inert, "", "<a ", ""),
    "chart, schemes": (_inert, "", "http", "://"),
}


def seconds(read: Callable[[str], object], text: str, times: int = 3) -> float:
    """Of this thread's CPU time, at its best."""
    found: list[float] = []
    for _ in range(times):
        started = thread_time()
        read(text)
        found.append(thread_time() - started)
    return min(found)


class Repeated(NamedTuple):
    """A text of about a length: how it begins, what is repeated, how it ends."""

    head: str
    unit: str
    tail: str

    def __call__(self, length: int) -> str:
        return self.head + self.unit * (length // len(self.unit)) + self.tail


def grows_linearly(read: Callable[[str], object], made: Callable[[int], str], longest: int) -> bool:
    """Whether twice the text takes at most twice the time (and 30 %), where it takes long enough to be measured."""
    length = 1_000
    while seconds(read, made(length)) < MEASURABLE and length < longest:
        length *= 2
    # Once more where another program was in the way.
    return any(
        seconds(read, made(2 * length)) <= 2 * 1.3 * max(seconds(read, made(length)), MEASURABLE) for _ in range(3)
    )


@pytest.fixture(autouse=True)
def no_collection() -> Generator[None]:
    """What a collection of other tests' garbage takes is not counted."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.fault("gate: a text made to be read for ever")
@pytest.mark.parametrize("name", CASES)
def test_a_text_made_to_be_read_for_ever_is_read_in_linear_time(name: str) -> None:
    read, *parts = CASES[name]
    text = Repeated(*parts)
    assert seconds(read, text(LENGTH), times=1) < 1 * slowness()
    assert grows_linearly(read, text, LENGTH)


@pytest.mark.system
@pytest.mark.fault("gate: a text made to be read for ever")
def test_every_regular_expression_takes_linear_time() -> None:
    slow: list[tuple[str, str, str, str]] = []
    for pattern, (before, unit), end in (
        (one, text, end) for one in patterns() for text in one.texts() for end in ENDS
    ):
        if not grows_linearly(pattern.use, Repeated(before, unit, end), 32_000):
            slow.append((pattern.place, before, unit, end))
    assert slow == []


def test_every_module_that_parses_is_on_the_list() -> None:
    parsing = [name for name in modules() if IMPORTS.search((ROOT / name).read_text(encoding="utf-8"))]
    assert parsing == sorted(LISTED)
    tried = {name for _, names in LISTED.values() for name in names.split(", ") if name}
    assert {name for name in tried if "::" not in name} <= {parser.name for parser in PARSERS}
    for file, _, name in (test.partition("::") for test in tried if "::" in test):
        assert f"def {name}(" in (ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8")
