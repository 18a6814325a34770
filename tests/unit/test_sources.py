"""Sources have one number in the whole conversation, and an answer carries those that it cites."""

import pytest

from task.conversation.messages import Attachment, Message, Role, assistant, tool_message, user
from task.conversation.sources import Sources, marker_of
from tests.support.tool_calls import call_of

CALL = call_of("ask", {})
PAGE = "https://a.example/page"


def cites(sources: Sources, url: str, title: str = "Page", data: str = "Words.") -> Attachment:
    """A source of a result, as a tool attaches it."""
    return sources.citation(sources.number(url), title, data=data, reference_url=url)


def titles(found: list[Attachment]) -> list[str | None]:
    return [item.title for item in found]


def result(text: str, *items: Attachment) -> Message:
    return Message(Role.TOOL, text, tool_call_id="call_1", attachments=items)


def test_a_page_that_two_searches_find_is_one_source_with_what_both_say_of_it() -> None:
    sources = Sources()
    cites(sources, PAGE, data="One.")
    cites(sources, "https://b.example")
    cites(sources, PAGE, data="Two.")
    cites(sources, PAGE, data="Two.")
    [page] = sources.cited("See [1].")
    assert (page.title, page.data) == ("[1] Page", "One.\n\nTwo.")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("One [1], and [3].", "13"),
        ("All of it [1, 3].", "13"),
        ("All of it [1; 2][3]", "123"),
        ("All of it [1-3]", "123"),
        ("All of it [2–3]", "23"),
        ("As https://b.example/2 says.", "2"),
        ("As https://b.example/2.", "2"),
        ("As https://b.example/20 says.", ""),
        ("As https://b.example/2.html says.", ""),
        ("`rows[1]` is code, [2] is not.\n```\nrows [3]\n```", "2"),
        ("Unknown [7], [1000-9999].", ""),
        ("Nothing.", ""),
        ("", ""),
    ],
)
def test_an_answer_carries_the_pages_that_it_names(text: str, numbers: str) -> None:
    sources = Sources()
    for number in range(1, 4):
        cites(sources, f"https://b.example/{number}", f"Page {number}")
    assert titles(sources.cited(text)) == [f"[{number}] Page {number}" for number in numbers]


def test_an_answer_that_names_no_source_carries_the_quotes_from_documents_that_were_found_for_it() -> None:
    sources = Sources()
    cites(sources, "files/b/a.pdf", "a.pdf, p. 1")
    cites(sources, PAGE)
    assert titles(sources.cited("It is so.")) == ["[1] a.pdf, p. 1"]
    assert titles(sources.cited("It is so [2].")) == ["[2] Page"]
    assert sources.cited(" ") == []


def test_numbers_of_earlier_answers_are_not_given_again_and_can_still_be_cited() -> None:
    before = Sources()
    found = result("[1] and [2]", cites(before, "files/b/a.pdf", "a.pdf"), cites(before, PAGE))
    sources = Sources([user("?"), assistant(None, [CALL]), found, assistant("So [1]."), user("And now?")])
    assert cites(sources, PAGE).title == "[2] Page"
    assert cites(sources, "https://b.example").title == "[3] Page"
    assert titles(sources.cited("As before [1].")) == ["[1] a.pdf"]
    assert sources.cited("No number.") == []


def test_quotes_of_a_turn_that_was_resumed_are_found_for_its_answer() -> None:
    found = result("So [1].", cites(Sources(), "files/b/a.pdf", "a.pdf"))
    sources = Sources([user("?"), assistant(None, [CALL]), found])
    assert titles(sources.cited("It is so.")) == ["[1] a.pdf"]


@pytest.mark.fault("mcp: numbers of sources that clash")
def test_a_tool_that_numbers_its_sources_by_itself_gets_numbers_that_are_free() -> None:
    sources = Sources()
    cites(sources, PAGE)
    cites(sources, "files/b/a.pdf")
    own = (
        Attachment("text/markdown", "[1] x.pdf", data="Words of x.", reference_url="files/b/x.pdf"),
        Attachment("text/markdown", "[2] Page", data="Words.", reference_url=PAGE),
        Attachment("image/png", "chart.png", url="files/b/chart.png"),
    )
    adopted = sources.adopted(result("So [1, 2], and [1]. From [2020–2024].", *own))
    assert adopted.text() == "So [3, 1], and [3]. From [2020–2024]."
    assert titles(list(adopted.attachments)) == ["[3] x.pdf", "[1] Page", "chart.png"]
    assert sources.adopted(adopted) == adopted
    again = sources.adopted(result("So [1, 2], and [1]. From [2020–2024].", *own))
    assert again.text() == adopted.text()  # or an equal call would never be seen to give an equal result


def test_a_result_without_numbered_sources_stays_as_it_is() -> None:
    plain = tool_message(CALL, "rows [1] and [2]")
    assert Sources().adopted(plain) is plain


def test_the_place_of_a_number_is_that_of_its_first_marker() -> None:
    assert marker_of(2, "One [1]. Both [1, 2]. Again [2].") == (14, 20)
    assert marker_of(5, "One [1].") is None
