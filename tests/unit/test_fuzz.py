"""No text from outside makes its parser raise anything but its own errors, or take long or much memory."""

import resource
from contextlib import suppress
from time import process_time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.support.parsers import PARSERS, Parser

SECONDS, KILOBYTES = 2, 200_000
SAMPLE = 1_000  # of how many examples `make test` runs one


def seconds(parser: Parser, text: Any) -> float:
    started = process_time()
    with suppress(*parser.refusals):
        parser.parse(text)
    return process_time() - started


def fuzz(parser: Parser, examples: int) -> None:
    @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=list[Any](HealthCheck))
    @given(parser.texts)
    def holds(text: Any) -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        # At its best: a collection of what the examples before it left may fall into one.
        assert any(seconds(parser, text) < SECONDS for _ in range(3))
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < KILOBYTES

    holds()


@pytest.mark.fault("gate: text from outside of any shape, for every parser")
@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_a_parser_of_outside_text_holds(parser: Parser) -> None:
    fuzz(parser, max(parser.examples // SAMPLE, 5))


@pytest.mark.system
@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_a_parser_of_outside_text_holds_in_two_hundred_thousand_examples(parser: Parser) -> None:
    fuzz(parser, parser.examples)
