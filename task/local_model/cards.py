"""How the product's own tools are put to a small model: a few words, and one question with its call each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Card:
    """What the tool lets the assistant do, when to call it, and a question with the arguments of its call.

    Other arguments are not offered. `patterns` are what the text of an argument must look like.
    """

    can: str
    when: str
    question: str
    arguments: Mapping[str, Any]
    patterns: Mapping[str, str] = field(default_factory=dict[str, str])


# Numbers, signs and the calculator's functions: a small model would else write columns and variables into it.
ARITHMETIC = (
    r"^([-+*/%^()., 0-9\[\]]|sqrt|sin|cos|tan|asin|acos|atan|degrees|radians|log10|log2|log|exp|round|abs|min|max|sum"
    r"|factorial|floor|ceil|pow|pi|e)+$"
)
# In the order in which models read them: what they have read once need not be worked out again.
CARDS: Mapping[str, Card] = MappingProxyType({
    "calculator": Card(
        "calculate",
        "any arithmetic",
        "How much is 15% of 80, plus its root?",
        {"expression": "0.15*80 + sqrt(80)"},
        {"expression": ARITHMETIC},
    ),
    "file_content_extraction_tool": Card(
        "read attached files",
        "read an attached file: summaries, tables, totals",
        "Which month sold most? (files/k2/sales.csv is attached)",
        {"file_url": "files/k2/sales.csv", "page": 1},
    ),
    "rag_search_tool": Card(
        "find facts in long documents",
        "find one fact in a long attached document",
        "How long is the warranty? (files/k2/manual.pdf is attached)",
        {"request": "length of the warranty", "file_url": "files/k2/manual.pdf"},
    ),
    "image_generation_tool": Card(
        "make pictures",
        "make a picture, drawing, logo or photo",
        "Paint a fox",
        {"prompt": "a red fox in a forest, oil painting"},
    ),
    "execute_code": Card(
        "run Python code for charts and data",
        "run Python: charts, simulations, data analysis, making files",
        "Roll two dice 100 times",
        {"code": "import random\nprint([random.randint(1, 6) + random.randint(1, 6) for _ in range(100)])"},
    ),
    "duckduckgo_web_search": Card(
        "search the web",
        "search the web: news, weather, prices, results, whatever is recent",
        "Who won the race today?",
        {"query": "race winner today"},
    ),
    "fetch_page": Card(
        "read web pages", "read a web page", "What is on https://example.org/a?", {"url": "https://example.org/a"}
    ),
})  # fmt: skip
# A small model's results are shortened before it reads them, so there is nothing to read on in.
UNUSED = frozenset({"read_file_lines", "search_in_file"})
