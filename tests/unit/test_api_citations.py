"""What the HTTP door shows beside an answer: citations."""

from __future__ import annotations

from task.api.responses_output import citations
from task.core_client.files import file_id_of


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


def test_a_page_that_the_text_does_not_name_is_cited_at_its_end() -> None:
    [noted] = citations([{"title": "News", "reference_url": "https://example.org"}], "See the news.")
    assert (noted["start_index"], noted["end_index"]) == (13, 13)
