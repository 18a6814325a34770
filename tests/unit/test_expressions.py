"""Every regular expression of the product takes time that is linear in the text, whatever the text is."""

import re
from time import process_time

import pytest

from tests.support.expressions import Case, Expression, expressions_of, files, possessive_groups, worst_cases

FILES = files()
LINEAR = Expression("linear", re.compile(r"[a-z]|[0-9]"), ("finditer",))
TOLERANCE = 12  # times what it takes to find each character on its own
SMALL = 4_000


def seconds(expression: Expression, case: Case, size: int) -> float:
    """What the slowest of the methods takes for a text of this size."""
    text = case.text(size)
    longest = 0.0
    for method in expression.methods:
        started = process_time()
        expression.apply(method, text)
        longest = max(longest, process_time() - started)
    return longest


def least(expression: Expression, case: Case, size: int) -> float:
    """The least of three: one may be spent on something else, such as the collection of garbage."""
    return min(seconds(expression, case, size) for _ in range(3))


def plain_seconds(size: int) -> float:
    """What an expression that is known to be linear takes: the middle of several runs."""
    return sorted(seconds(LINEAR, Case("", "a0", ""), size) for _ in range(9))[4]


def is_slow(expression: Expression, case: Case, size: int) -> bool:
    """Whether it takes too long, thrice in a row, so that a busy machine is not to blame."""
    return all(seconds(expression, case, size) > TOLERANCE * plain_seconds(size) for _ in range(3))


def slow_case(expression: Expression, pieces: int) -> Case | None:
    """A text for which the expression takes more than linear time; None if none is found."""
    cases = worst_cases(expression.pattern, pieces)
    # A short text comes first, since an exponential expression would not end at a long one.
    short = next((case for case in cases if least(expression, case, 20) > 0.01), None)
    return short or next(
        (case for case in cases if seconds(expression, case, SMALL) > 0.001 and is_slow(expression, case, SMALL)),
        None,
    )


def test_the_expressions_of_the_whole_product_are_found() -> None:
    places = {expression.place for file in FILES for expression in expressions_of(file)}
    assert len(places) > 150
    assert {"task.permissions.icerc:_PARTS", "mcp_servers.duckduckgo.text:_CHARSET"} <= places


@pytest.mark.parametrize("file", FILES)
def test_no_group_is_repeated_possessively_which_python_before_3_11_5_does_wrongly(file: str) -> None:
    assert possessive_groups(re.compile(r"a++b*+(?:c|de)?+")) == 1
    # An atomic group says the same. Source: CPython issue 106052.
    assert [expression.place for expression in expressions_of(file) if possessive_groups(expression.pattern)] == []


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"(a+)+$", "match"),
        (r"(a|a)*$", "match"),
        (r"\s*x", "search"),
        (r"^[\s*#]*intent", "search"),
        (r"<[^>]*>", "sub"),
        (r"charset\s*=\s*[\"']?\s*(\w+)", "findall"),
        (r"(\S.*?)\s*#*$", "match"),
    ],
)
def test_expressions_that_are_known_to_be_slow_are_found_to_be(pattern: str, method: str) -> None:
    assert slow_case(Expression("slow", re.compile(pattern, re.MULTILINE), (method,)), 24)


@pytest.mark.fault("gate: text that a regular expression takes long for")
@pytest.mark.parametrize("file", FILES)
def test_an_expression_is_linear_in_the_texts_that_its_structure_suggests(file: str) -> None:
    slow = {expression.place: slow_case(expression, 2) for expression in expressions_of(file)}
    assert not {place: case for place, case in slow.items() if case}
