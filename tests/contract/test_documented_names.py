"""Every name that the specification documents exists as documented; the comparison sees every kind of difference."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.documented import differences

HERE = Path(__file__).parent
NAMES: dict[str, dict[str, Any]] = json.loads((HERE / "documented_names.json").read_text(encoding="utf-8"))
LISTED = tomllib.loads((HERE / "deviations.toml").read_text(encoding="utf-8"))
DEVIATIONS: dict[str, str] = {row["name"]: row["reason"] for row in LISTED["deviation"]}


@pytest.mark.parametrize("name", sorted(NAMES.keys() - DEVIATIONS.keys()))
def test_it_is_as_documented(name: str) -> None:
    assert differences(name, NAMES[name]) == []


def test_every_listed_deviation_still_deviates_and_says_why() -> None:
    assert (len(NAMES), len(DEVIATIONS)) == (187, 2)
    for name, reason in DEVIATIONS.items():
        assert differences(name, NAMES[name]), f"{name} is as documented; remove its row"
        assert len(reason.split()) > 5, f"{name} needs a reason"


def documented_function(task: str, s: int | None = None) -> str:
    return task * (s or 1)


class Example:
    """What the comparison is tried on."""

    def __init__(self, endpoint: str, *, seam: int = 0) -> None:
        self.endpoint = endpoint + str(seam)

    @property
    def name(self) -> str:
        return "example"

    @property
    def parameters(self) -> dict[str, Any]:
        return {"properties": {"page": {"type": "integer", "default": 1}}, "required": ["page"]}

    async def ask(self, question: str, tries: int = 3) -> str:
        return question * tries

    @staticmethod
    def plain(value: str) -> str:
        return value


def method(parameters: list[tuple[str, str | None]], *, is_async: bool = True, static: bool = False) -> dict[str, Any]:
    return {"kind": "method", "async": is_async, "static": static, "parameters": parameters}


def schema(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {"kind": "class", "bases": [], "schema": {"properties": properties, "required": [*required]}}


def function(parameters: list[tuple[str, str | None]], *, is_async: bool = False) -> dict[str, Any]:
    return {"kind": "function", "async": is_async, "parameters": parameters}


@pytest.mark.parametrize(
    ("member", "entry", "complaint"),
    [
        (":Example.ask", method([("question", None), ("tries", "3")]), None),
        (":Example.ask", method([("question", None)]), None),
        (":Example.ask", method([("tries", "3"), ("question", None)]), "parameter 1 is not tries"),
        (":Example.ask", method([("question", None), ("tries", "4")]), "tries defaults to 3, documented is 4"),
        (":Example.ask", method([("question", None), ("tries", "3"), ("x", None)]), "parameter 3 is not x"),
        (":Example.ask", method([]), "question is required and not documented"),
        (":Example.ask", method([("question", None), ("tries", "3")], is_async=False), "it is asynchronous"),
        (":Example.ask", method([("question", None), ("tries", "3")], static=True), "it is not a static method"),
        (":Example.plain", method([("value", None)], is_async=False, static=True), None),
        (":Example.__init__", method([("endpoint", None)], is_async=False), None),
        (":Example.__init__", method([("endpoint", None), ("seam", "0")], is_async=False), "seam cannot be given"),
        (":Example.gone", method([]), "is missing"),
        (":Example.endpoint", {"kind": "attribute"}, None),
        (":Example.state", {"kind": "attribute"}, "no method assigns it"),
        (":Example.name", {"kind": "property", "value": "example"}, None),
        (":Example.name", {"kind": "property", "value": "other"}, "documented is 'other'"),
        (":Example", {"kind": "class", "bases": ["ABC"]}, "it does not derive from ABC"),
        (":Example", schema({}), "required is ['page']"),
        (":Example", schema({"page": {"default": 2}}, "page"), "documented is {'default': 2}"),
        (":documented_function", function([("task", None), ("s", "None")]), None),
        (":documented_function", function([("task", None)], is_async=True), "it is not asynchronous"),
        (":documented_function", function([("task", None), ("s", "1")]), "s defaults to None, documented is 1"),
        (".no_such_module", {"kind": "module"}, "no_such_module is missing"),
    ],
)
def test_a_difference_is_described_in_one_sentence(member: str, entry: dict[str, Any], complaint: str | None) -> None:
    found = differences(f"{__name__}{member}", entry)
    assert complaint in found[0] if complaint else found == []
