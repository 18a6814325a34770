"""Citations in the text of an answer: tags only in prose, their annotations once, and the text itself unchanged."""

import re

import pytest

from task.agent import FoldedChoice
from task.conversation.messages import Attachment, Message, Role
from task.conversation.sources import TAGS as OURS
from task.conversation.sources import Sources
from task.llm.scripted import ScriptedModel, says, wants
from task.output.links import Suspicion
from task.output.sanitizer import Defanger
from task.output.sinks import DefangedChoice
from tests.support.choices import RecordingChoice
from tests.support.in_process import Chat, agents
from tests.support.tools import MadeTool

SUSPICION = Suspicion(lambda url: url.startswith("https://known.example"), lambda: True)


def answered(text: str, size: int, sources: Sources) -> RecordingChoice:
    """The answer as a chat gets it, written in pieces of `size` characters."""
    chat = RecordingChoice()
    folded = FoldedChoice(chat, None, sources, send=chat.send_chunk)
    safe = DefangedChoice(folded, SUSPICION)
    for start in range(0, len(text), size):
        safe.append_content(text[start : start + size])
    safe.close()
    assert OURS.sub("", chat.content) == "".join(folded.said), "what comes back is what the model wrote"
    return chat


def two_sources() -> Sources:
    sources = Sources()
    sources.citation(sources.number("a"), "Guide", data="Rinse it.", reference_url="files/b/guide.pdf")
    sources.citation(sources.number("b"), "Page", data="Words.", reference_url="https://known.example/b")
    return sources


TAGS = {mark: f'<cit id="c{number}" data-id="c{number}"></cit>' for number, mark in enumerate("°²", 1)}
ANSWERS = [  # with a mark where a tag is to be
    "Rinse it [1]°. Dry it [2]², and rinse it again [1]°.",
    "All of it [1, 2]°², of unknown [7] too [1-3]°²",
    "One [1]°[2]²!\n\n| a | b |\n|---|---|\n| x [1]° | `z[1]` [2]² |\n",
    "`a[1]` is code, [1]° is not.\n\nAfter ``b`[1]`` [1] or `what [1] is unsure",
    "```py\na[1]\n```\nThen [1]°.\n\n````\n```\na[1]\n````\n[1]°\n\n~~~\n```\n[1]\n~~~\n[2]²",
    "- a\n\n  ```\n  a[1]\n  ```\n- [1]°\n\n> ```\n> a[1]\n> ```\n>\n> [1]°",
    "    a[1]\n\n    - b [1]°\n\ta[1]\n",
    "[1]: https://known.example/b\n\n[1](https://known.example/b), [see [1] now](https://known.example/b)",
    "![b](files/b/[1].png) [1]°, ![a [1]](files/b/a.png) [1]",
    'A [1]°, <b title="[1]">x [1]</b> <a href="https://known.example/[1]" title="[2]">c</a>\n\nB [1]°',
    "It costs $5 [1]°.\n\nHere $x[1]$ and [1]\n\n$$\na[1]\n\n[1]\n$$\n\nNow [1]°",
    "Here \\(a[1]\\) [1].\n\n\\[\na[1]\n[1]\n\\]\n\nNow [1]°",
    '{"a": "b [1]", "c": [1]}',
    '["a [1]", {"b": "[1]"}]',
    "https://known.example/a[1]b and https://known.example/[1], [1]°",
    'The model\'s own <cit id="c1" data-id="c1"></cit> and <cit id="c2"/> [1]°',
    "No [source.\nNo [1].\n\nNow [1]°.\r\nAnd [1]°\r\n",
    "Nothing.",
]


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_tag_stands_behind_each_marker_in_prose_and_nowhere_else(answer: str) -> None:
    text = re.sub("[°²]", "", answer)
    written = Defanger(SUSPICION).feed(text, last=True)
    for size in (1, 2, 3, 7, 10_000):
        chat = answered(text, size, two_sources())
        shown = chat.content
        for mark, tag in TAGS.items():
            shown = shown.replace(tag, mark)
        assert "".join(re.findall("[°²]", shown)) == "".join(re.findall("[°²]", answer))
        assert [shown.find(f"]{mark}") > 0 for mark in set(shown) & {"°", "²"} if f"]{mark}" in answer].count(
            False
        ) == 0
        assert re.sub("[°²]", "", shown) == written
        assert len(chat.annotations) == len(set(answer) & {"°", "²"})


def test_an_annotation_has_the_title_the_quote_and_the_place_of_its_source_and_the_id_of_its_tag() -> None:
    sources = two_sources()
    sources.citation(sources.number("c"), "T" * 300, data="Q" * 3000, reference_url="files/b/t.txt")
    cited = answered("See [2], [1] and [3].", 4, sources).annotations
    assert [item["index"] for item in cited] == [0, 1, 2]
    assert cited[1] == {
        "index": 1,
        "body": {
            "title": "Guide",
            "quote": "Rinse it.",
            "source": {
                "type": "attachment",
                "attachment": {"type": "application/pdf", "url": "files/b/guide.pdf", "title": "Guide"},
            },
        },
        "target": {"selector": {"type": "html_tag", "tag": "cit", "id": "c1"}},
    }
    assert cited[0]["body"]["source"]["attachment"]["type"] == "text/html"
    assert len(cited[2]["body"]["quote"]) == 600


def test_a_source_that_is_found_while_the_answer_is_written_counts_from_then_on() -> None:
    sources = Sources()
    chat = RecordingChoice()
    folded = FoldedChoice(chat, None, sources, send=chat.send_chunk)
    folded.append_content("I look [1].\n```\na")
    sources.citation(sources.number("a"), "Guide", data="Rinse it.", reference_url="files/b/guide.pdf")
    folded.append_content("[1]\n```\n\nFound [1].")
    assert chat.content == f"I look [1].\n```\na[1]\n```\n\nFound [1]{TAGS['°']}."


def test_tags_end_with_a_paragraph_that_is_too_long_to_be_read_again_for_each() -> None:
    chat, sources = RecordingChoice(), two_sources()
    folded = FoldedChoice(chat, None, sources, send=chat.send_chunk)
    for piece in ("word " * 2000, "[1]", " and [1]", "\n\nNow [1]."):
        folded.append_content(piece)
    assert chat.content.count("<cit ") == 1
    assert OURS.sub("", chat.content) == "".join(folded.said)


def test_a_marker_of_many_sources_has_ten_tags() -> None:
    sources = Sources()
    for number in range(60):
        sources.citation(sources.number(number), "Page", data="Words.", reference_url=f"https://known.example/{number}")
    assert answered("All [1-60].", 100, sources).content.count("<cit ") == 10


async def test_an_answer_without_tools_that_cites_stays_the_agents_own_when_it_comes_back() -> None:
    found = Attachment("text/markdown", "[1] Guide", "Rinse it.", None, "files/b/guide.pdf")

    async def search() -> Message:
        return Message(Role.TOOL, "Rinse it [1].", attachments=(found,))

    model = ScriptedModel(wants("search"), says("Rinse it [1]."), says("As said [1]."), says("Yes."))
    async with agents(model, MadeTool("search", search)) as running:
        chat = Chat(running)
        await chat.say("How?")
        assert (await chat.say("Sure?")).content == f"As said [1]{TAGS['°']}."
        await chat.say("Really?")
        answers = [item for item in model.requests[-1] if item.role is Role.ASSISTANT and not item.tool_calls]
        assert [(item.text(), item.unsourced) for item in answers] == [
            ("Rinse it [1].", False),
            ("As said [1].", False),
        ]
