"""What reads text from outside takes linear time, whatever it does around its regular expressions."""

from collections.abc import Callable
from time import process_time

import pytest

from task.approvals.approvals import _decision
from task.conversation.sources import Sources
from task.documents.html import letters
from task.documents.xlsx import shown_as
from task.llm.text_calls import OfferedTools, TextScanner
from task.output.charts import _inert
from task.permissions.arguments import addresses, command_lines, sent_length
from task.permissions.facts import _is_number
from task.permissions.hosts import is_address, normalised
from task.permissions.icerc import Brief, _numbers
from task.permissions.taint import addresses_in, folded, is_plain, urls_of_text
from task.search.answers import _parted, _renumbered, literal, markers, statements, without_markers
from task.tools.py_interpreter.execution import Execution, outcome

LENGTH = 100_000
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def scanned(text: str) -> None:
    scanner = TextScanner(OfferedTools([TOOL]), ())
    for start in range(0, len(text), 50):
        list(scanner.feed(text[start : start + 50]))
    list(scanner.close())


# What reads a text, how the text begins, what is repeated in it, and how it ends.
CASES: dict[str, tuple[Callable[[str], object], str, str, str]] = {
    "brief, newlines": (Brief.read, "x", "\n", "x"),
    "brief, marks": (Brief.read, "", "\n*#> -", "x"),
    "brief, headings": (Brief.read, "", "intent ", ""),
    "numbers": (_numbers, "", "1,", "a"),
    "amount": (_is_number, "", "1'", "x"),
    "URLs, schemes": (lambda text: list(urls_of_text(text)), "", "a+", "://"),
    "URLs, many": (lambda text: list(urls_of_text(text)), "", "'a://", ""),
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
    "chart, tags": (_inert, "", "<a ", ""),
    "chart, schemes": (_inert, "", "http", "://"),
}


@pytest.mark.fault("gate: a text made to be read for ever")
@pytest.mark.parametrize("name", CASES)
def test_a_text_made_to_be_read_for_ever_is_read_quickly(name: str) -> None:
    read, head, unit, tail = CASES[name]
    text = head + unit * (LENGTH // len(unit)) + tail
    started = process_time()
    read(text)
    assert process_time() - started < 1
