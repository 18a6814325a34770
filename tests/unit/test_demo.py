"""The demo is labelled as one: it calls the tool that fits the attachment, and its words are true of the samples."""

import csv
import json
import re
from collections import Counter

import pypdfium2
import pytest

from task.api.page import STATIC
from task.conversation.messages import Message, Role, assistant, system, user
from task.llm.base import TextDelta, ToolSchema
from task.llm.demo import SAMPLES, Sample, demo, demo_reply
from task.llm.scripted import Reply

READER = "file_content_extraction_tool"
LABEL = "I am a scripted demo, not a real model"
TABLE, PDF, CHART = SAMPLES


def offered(*names: str) -> list[ToolSchema]:
    return [{"type": "function", "function": {"name": name, "description": "", "parameters": {}}} for name in names]


def calls(reply: Reply) -> list[tuple[str | None, object]]:
    return [(call.name, call.arguments) for call in reply.calls]


ATTACHED = """What is in these?

Attached files:
- report (1).csv (text/csv): files/BUCKET/report%20(1).csv
- notes (text/plain): files/BUCKET/notes
- tool.exe (application/x-msdownload): files/BUCKET/tool.exe"""


def shown(reply: Reply) -> str:
    return "".join(event.text for event in reply.events if isinstance(event, TextDelta))


def test_the_demo_reads_each_attachment_that_it_can() -> None:
    assert demo().name == "scripted-demo"
    assert calls(demo_reply([system("x"), user(ATTACHED)], offered(READER))) == [
        (READER, {"file_url": "files/BUCKET/report%20(1).csv"}), (READER, {"file_url": "files/BUCKET/notes"})
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        (ATTACHED, ["calculator"]),
        ("Attached files:\n- tool.exe (application/x-msdownload): files/B/tool.exe", [READER]),
        ("What is 25*47? calculator!", ["calculator", READER]),
    ],
)
def test_the_demo_lists_the_tools_if_none_fits_whatever_the_words(text: str, tools: list[str]) -> None:
    reply = demo_reply([user(text)], offered(*tools))
    assert reply.calls == ()
    words = [LABEL, *(f"`{tool}`" for tool in tools)]
    assert all(part in shown(reply) for part in (*words, "OPENAI_API_KEY", "OPENAI_BASE_URL", "DIAL_ENDPOINT"))


def test_the_demo_shows_what_came_back_quoted_and_cut() -> None:
    table = "category,sales\n" + "A,1700\n" * 1000
    result = Message(Role.TOOL, table, tool_call_id="c", name=READER)
    reply = demo_reply([user(ATTACHED), assistant("Let me see."), result], ())
    said = shown(reply)
    assert "> category,sales\n> A,1700\n" in said
    assert "[cut, 7045 characters in all]" in said
    assert LABEL in said
    assert len(said) < 4000
    assert len(reply.events) > 100, "word by word"


def about(sample: Sample, *more: str) -> Message:
    lines = [f"- {name} (text/csv): files/B/{name}" for name in (sample.name, *more)]
    return user("\n".join(["Look!", "", "Attached files:", *lines, "", "[Note from the system: it is 9:00.]"]))


def result(sample: Sample, text: str) -> Message:
    return Message(Role.TOOL, text, tool_call_id="c", name=sample.tool)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_sample_calls_its_tool_and_only_a_true_result_is_spoken_about(sample: Sample) -> None:
    asked = about(sample)
    [(tool, arguments)] = calls(demo_reply([asked], offered(READER, sample.tool)))
    place = {} if sample is CHART else {"file_url": f"files/B/{sample.name}"}
    assert (tool, arguments) == (sample.tool, {**sample.arguments, **place})
    true = shown(demo_reply([asked, result(sample, f"Here:\n{sample.shows.replace(' ', chr(10), 1)} [3]")], ()))
    assert true.startswith(sample.words.replace("[1]", "[3]"))
    assert all(part in true for part in (LABEL, "these words were written beforehand"))
    for changed in ("Not yet: search in documents is being installed.", "| 2026-06 | Desk | 1 | 2 |", ""):
        said = shown(demo_reply([asked, result(sample, changed)], ()))
        assert (sample.words in said, "The tool gave back" in said, LABEL in said) == (False, True, True)


def test_a_sample_without_its_tool_or_beside_another_file_is_read_like_any_other() -> None:
    assert calls(demo_reply([about(PDF)], offered(READER))) == [(READER, {"file_url": f"files/B/{PDF.name}"})]
    both = calls(demo_reply([about(PDF, "b.csv")], offered(READER, PDF.tool)))
    assert [name for name, _ in both] == [READER, READER]


def test_a_search_is_answered_from_the_excerpt_that_it_found_or_not_at_all() -> None:
    before = "Excerpt [1] from a.pdf, p. 1:\nOther things.\n\nExcerpt [2] from b.pdf, p. 2:\nA "
    found = shown(demo_reply([user(f"{before}{PDF.shows.replace(' ', chr(10), 2)}.\n\nQuestion: ?")], ()))
    assert found == f'{PDF.words.replace("[1]", "[2]")}\n\nQuotes:\n[2] "{PDF.shows}"\n'
    assert LABEL in shown(demo_reply([user(f"{before}hat.\n\nQuestion: ?")], ()))


def test_the_words_are_true_of_the_samples_which_are_small() -> None:
    revenue, units, first, last = Counter[str](), Counter[str](), dict[str, int](), dict[str, int]()
    for row in csv.DictReader(TABLE.path.read_text().splitlines()):
        product, value = row["Product"], int(row["Revenue (EUR)"])
        revenue[product] += value
        units[product] += int(row["Units"])
        first.setdefault(product, value)
        last[product] = value
    best, second = (product for product, _ in revenue.most_common(2))
    numbers = (revenue[best], revenue[second], units[best], first[best], last[best])
    for fact in (best.lower(), second.lower(), *map("{:,}".format, numbers)):
        assert fact in TABLE.words
    months = list(csv.DictReader(CHART.path.read_text().splitlines()))
    more = [row["Month"] for row in months if int(row["Solar (kWh)"]) > int(row["Used (kWh)"])]
    assert CHART.shows == f"More than is used: {', '.join(more)}"
    share = sum(int(row["Solar (kWh)"]) for row in months) / sum(int(row["Used (kWh)"]) for row in months)
    assert f"{share:.0%}".replace("%", " %") in CHART.words
    with pypdfium2.PdfDocument(PDF.path) as document:
        pages = [document[number].get_textpage().get_text_range() for number in range(len(document))]
    assert PDF.shows in " ".join(" ".join(pages).split())
    assert PDF.shows in PDF.words.removeprefix("A ")
    assert all(sample.path.stat().st_size < 9_000 for sample in SAMPLES)


def test_the_page_offers_the_same_samples() -> None:
    [listed] = re.findall(r"const SAMPLES = \[(.*?)\n\];", (STATIC / "main.js").read_text("utf-8"), re.DOTALL)
    texts = [json.loads(text) for text in re.findall(r'"[^"]*"', listed)]
    assert texts == [text for sample in SAMPLES for text in (sample.title, sample.question, sample.name)]
