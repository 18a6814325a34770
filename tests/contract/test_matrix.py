"""One contract for all front doors and backends: every cell of the matrix gives the same trace of a conversation.

A trace is what the model was asked, what the person saw, and what the chat kept; ids, times, durations and the places
of files are taken out of it, nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from task.conversation.state import PENDING_KEY, TOOL_CALL_HISTORY_KEY
from task.llm.scripted import Reply
from tests.support.chat_reader import Answer
from tests.support.product import Product, product
from tests.support.scripts import Conversation, Turn, load_conversations
from tests.support.upstream import Received

FOLDER = Path(__file__).parent / "matrix"
CONVERSATIONS = load_conversations(FOLDER)
BACKENDS = ("dial", "openai")

Trace = list[dict[str, Any]]


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda conversation: conversation.name)
async def test_every_door_and_backend_gives_the_same_trace(conversation: Conversation, tmp_path: Path) -> None:
    traces: dict[str, Trace] = {}
    for backend in BACKENDS:
        traces[f"DIAL door, {backend} backend"] = await through_the_dial_door(conversation, backend, tmp_path / backend)
    expected = next(iter(traces.values()))
    for cell, trace in traces.items():
        assert trace == expected, cell
    for turn, seen in zip(conversation.turns, expected, strict=True):
        said, asked, _ = seen["answer"].partition("**May I do")
        assert (said.strip(), bool(asked)) == (turn.answer, bool(turn.waits))
        assert seen["waits"] == turn.waits
        assert [call["tool"] for call in seen["calls"]] == [call.tool for call in turn.tool_calls]


async def through_the_dial_door(conversation: Conversation, backend: str, folder: Path) -> Trace:
    places: dict[str, str] = {}
    async with product(
        *replies(conversation, places), tmp_path=folder, backend=backend, tool_paths=[str(FOLDER / "notes.py")]
    ) as running:
        return [await talked(turn, running, places) for turn in conversation.turns]


def replies(conversation: Conversation, places: dict[str, str]) -> list[Callable[[Received], Reply]]:
    """The model's answers; `$report_csv` in them is the place of the attached report.csv once it is known."""

    def answer(data: Any, _: Received) -> Reply:
        return data.reply(places)

    return [partial(answer, data) for turn in conversation.turns for data in turn.model]


async def talked(turn: Turn, running: Product, places: dict[str, str]) -> dict[str, Any]:
    attachments: list[dict[str, Any]] = []
    for item in turn.attachments:
        content = (FOLDER / item["file"]).read_bytes()
        attachments.append(await running.reader.upload(item["title"], content, item["type"]))
        places[item["title"].replace(".", "_")] = attachments[-1]["url"]
    before = len(running.upstream.requests)
    answer = await running.reader.ask(turn.user, *attachments)
    assert answer.error is None, answer.error
    return normalised(trace_of(answer, running.upstream.requests[before:]), places)


def trace_of(answer: Answer, requests: list[Received]) -> dict[str, Any]:
    state = answer.state or {}
    kept = state.get(TOOL_CALL_HISTORY_KEY, [])
    calls = {call["id"]: call["function"] for message in kept for call in message.get("tool_calls", ())}
    return {
        "answer": answer.content,
        "finish_reason": answer.finish_reason,
        "calls": [{"tool": call["name"], "arguments": json.loads(call["arguments"])} for call in calls.values()],
        "stages": [[stage.name, stage.status, stage.content] for stage in answer.stages.values()],
        "asked": [request.messages for request in requests],
        "offered": [request.tools for request in requests],
        "kept": kept,
        "waits": [calls[item["call_id"]]["name"] for item in state.get(PENDING_KEY, ())],
        "form": answer.form_schema,
    }


def normalised(trace: dict[str, Any], places: dict[str, str]) -> dict[str, Any]:
    text = json.dumps(trace, ensure_ascii=False)
    for name, place in places.items():
        text = text.replace(place, f"<{name}>")
    calls = dict.fromkeys(re.findall(r'"id": "([^"]+)"', text))
    for number, call in enumerate(calls):
        text = text.replace(f'"{call}"', f'"call {number}"')
    return json.loads(re.sub(r" \[\d+\.\d\ds\]", "", text))
