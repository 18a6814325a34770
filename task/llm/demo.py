"""The labelled demo that answers where no model is connected: its words are written here, the tools really run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from task.conversation.inputs import ATTACHED
from task.conversation.messages import Message, Role
from task.llm.base import DEMO_NAME, ToolCallDelta, ToolSchema
from task.llm.scripted import Reply, ScriptedModel, says, wants

_WORD = re.compile(r"\S+\s*|\s+")
_FILE = re.compile(r"- (?P<title>.*) \((?P<type>[^()]*)\): (?P<url>\S+)\Z")
_ENDING = re.compile(r"\.(csv|tsv|txt|md|json|html?|pdf|docx|xlsx|pptx)\Z", re.IGNORECASE)
_EXCERPT = re.compile(r"Excerpt (\[\d+\]) from ")
_SOURCE = re.compile(r"\[\d+\]")
_READER = "file_content_extraction_tool"
_RESULT_LIMIT = 2000  # characters of tool results that the demo shows
_DEMO = "I am a scripted demo, not a real model"
_CONNECT = (
    "To connect a real model, run `dial-agent model pull`, start Ollama, or set `OPENAI_API_KEY` (with "
    "`OPENAI_BASE_URL` for any OpenAI-compatible server) or `DIAL_ENDPOINT`, and start again."
)


@dataclass(frozen=True, slots=True)
class Sample:
    """A question about a file that comes with the product: a starter, and a part of the guided demo.

    In the demo `tool` is called with `arguments`, and with the file's address unless it takes code. Where its result
    contains `shows`, `words` are true of it and are the answer; `[1]` in them stands for the result's source.
    """

    title: str
    question: str
    name: str
    tool: str
    shows: str
    words: str
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def path(self) -> Path:
        return Path(__file__).parent / "samples" / self.name


_CODE = """\
import pandas as pd
import plotly.express as px

energy = pd.read_csv("sample-energy.csv")
labels = {"value": "kWh", "variable": ""}
title = "Solar power and consumption"
px.line(energy, x="Month", y=["Solar (kWh)", "Used (kWh)"], title=title, labels=labels, markers=True).show()
surplus = energy[energy["Solar (kWh)"] > energy["Used (kWh)"]]
print("More than is used:", ", ".join(surplus["Month"]))
print("Covered over the year:", f'{energy["Solar (kWh)"].sum() / energy["Used (kWh)"].sum():.0%}')
"""
SAMPLES = (
    Sample(
        "Read a table",
        "Which product has the highest revenue, and how did it develop?",
        "sample-sales.csv",
        _READER,
        "| 2026-06 | Standing desk | 41 | 21320 |",
        "The **standing desk** has the highest revenue: 94,640 EUR from January to June, more than the office chair "
        "(78,090 EUR), although only 182 were sold. It grew from 11,440 EUR in January to 21,320 EUR in June.",
    ),
    Sample(
        "Search a PDF",
        "What must I do if I lose my access card, and what does it cost?",
        "sample-handbook.pdf",
        "rag_search_tool",
        "lost access card must be reported to the front desk within one hour; the replacement costs 15 euros",
        "A lost access card must be reported to the front desk within one hour; the replacement costs 15 euros [1].",
        {"request": "lost access card, what to do and what it costs"},
    ),
    Sample(
        "Draw a chart",
        "Draw solar power and consumption over the year. When is there more than we use?",
        "sample-energy.csv",
        "execute_code",
        "More than is used: Apr, May, Jun, Jul, Aug, Sep",
        "From **April to September** the roof gives more than is used. Over the whole year it covers 94 % of the "
        "consumption. The chart was drawn by Python code, which is in the step above.",
        {"code": _CODE},
    ),
)


def demo() -> ScriptedModel:
    """The model that answers where no real one is connected."""
    return ScriptedModel(name=DEMO_NAME, then=demo_reply, keep_requests=False)


def demo_reply(messages: Sequence[Message], tools: Sequence[ToolSchema]) -> Reply:
    """The demo's answer: the call that fits each attached file, words about a sample's result, or that it is a demo.

    It reads nothing into a question: the last message's role, its files and the offered tools decide.
    """
    offered = [str(tool["function"]["name"]) for tool in tools]
    last = messages[-1] if messages else Message(Role.USER)
    if last.role is Role.TOOL:
        results = list(takewhile(lambda message: message.role is Role.TOOL, reversed(messages)))
        asked = next((message for message in reversed(messages) if message.role is Role.USER), last)
        return _about_results(list(reversed(results)), _sample(_attached(asked)))
    files = _attached(last) if last.role is Role.USER else []
    if (sample := _sample(files)) and sample.tool in offered:
        place = {} if "code" in sample.arguments else {"file_url": files[0]["url"]}
        return wants(sample.tool, **sample.arguments, **place)
    readable = [
        one for one in files if one["type"].startswith("text/") or any(map(_ENDING.search, one.group("title", "url")))
    ]
    if readable and _READER in offered:
        return Reply(tuple(ToolCallDelta(n, None, _READER, {"file_url": one["url"]}) for n, one in enumerate(readable)))
    # What the search in documents asks of its model: an answer from numbered excerpts, with a literal quote.
    for sample in SAMPLES if not offered else ():
        before, found, _ = _plain(last.text()).partition(sample.shows)
        if found and (numbers := _EXCERPT.findall(before)):
            words = sample.words.replace("[1]", numbers[-1])
            return says(f'{words}\n\nQuotes:\n{numbers[-1]} "{sample.shows}"\n')
    tip = "Attach a text, CSV or JSON file and I will show what the matching tool returns"
    tour = "`dial-agent ask --demo`, or the samples of the web page, show what the tools can do"
    listed = ", ".join(f"`{name}`" for name in offered) or "none"
    return _by_word(f"{_DEMO}, so I cannot answer this. {tip}. {tour}. Tools offered to me: {listed}.\n\n{_CONNECT}\n")


def _about_results(results: Sequence[Message], sample: Sample | None) -> Reply:
    text = "\n\n".join(f"{message.name or 'tool'}:\n{message.text()}" for message in results)
    if sample is not None and sample.shows in _plain(text):
        source = _SOURCE.search(text)
        words = sample.words.replace("[1]", source[0]) if source else sample.words
        label = f"{_DEMO}: `{sample.tool}` really ran on `{sample.name}`, but these words were written beforehand"
        return _by_word(f"{words}\n\n*{label}.*\n")
    if len(text) > _RESULT_LIMIT:
        text = f"{text[:_RESULT_LIMIT]}\n[cut, {len(text)} characters in all]"
    quoted = "\n".join(f"> {line}".rstrip() for line in text.splitlines())
    limit = "I show what a tool returned and cannot answer your question from it"
    return _by_word(f"The tool gave back:\n\n{quoted}\n\n{_DEMO}: {limit}. {_CONNECT}\n")


def _plain(text: str) -> str:
    return " ".join(text.split())  # lines of a PDF end anywhere


def _by_word(text: str) -> Reply:
    return says(*_WORD.findall(text), pause=0.003)


def _attached(message: Message) -> list[re.Match[str]]:
    # The lines of the list of attachments, which ends the text.
    _, found, block = message.text().rpartition(f"{ATTACHED}\n")
    return [match for line in block.splitlines() if found and (match := _FILE.match(line.strip()))]


def _sample(files: Sequence[re.Match[str]]) -> Sample | None:
    return next((sample for sample in SAMPLES if [file["title"] for file in files] == [sample.name]), None)
