"""What the HTTP door keeps and shows beside an answer: citations, and turns that callers resume."""

from __future__ import annotations

import pytest

from task.api.openai.files import file_id_of
from task.api.openai.responses_output import citations
from task.api.platform.kept_turns import conversation_key
from task.conversation.messages import FunctionCall, Message, Role, ToolCall


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


def test_a_page_that_the_text_does_not_name_is_cited_at_its_end() -> None:
    [noted] = citations([{"title": "News", "reference_url": "https://example.org"}], "See the news.")
    assert (noted["start_index"], noted["end_index"]) == (13, 13)


def key(arguments: str) -> str:
    call = ToolCall("call_0", FunctionCall("lookup", arguments))
    return conversation_key("ann", None, [Message(Role.ASSISTANT, None, tool_calls=(call,))])


def test_arguments_are_the_same_however_they_are_written() -> None:
    assert key('{"a": 1, "b": [2]}') == key('{"b":[2],"a":1}') != key('{"b":[2],"a":"1"}')


@pytest.mark.parametrize("bad", ["[" * 100_000, "[" * 900 + "]" * 900, "9" * 5_000, '{"a": NaN}', '"\ud800"', ""])
def test_arguments_that_are_no_json_or_nested_too_deep_are_compared_as_they_are(bad: str) -> None:
    assert key(bad) == key(bad) != key(f"{bad}\0")
