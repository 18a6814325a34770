"""Chunks of a DIAL answer become events, and events become lines."""

import io
import json
from collections.abc import AsyncGenerator
from typing import Any

from task.commands.answer import (
    AnswerEnded,
    AnswerEvent,
    AnswerFailed,
    AnswerReader,
    StageClosed,
    StageOpened,
    TextPiece,
)
from task.commands.answer_output import JsonOutput, TerminalOutput
from task.conversation.messages import Attachment


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None) -> bytes:
    return json.dumps({"choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}]}).encode()


def stage(index: int, **fields: Any) -> bytes:
    return chunk({"custom_content": {"stages": [{"index": index, "status": None, **fields}]}})


async def events(*payloads: bytes) -> list[AnswerEvent]:
    async def arriving() -> AsyncGenerator[bytes]:
        for payload in payloads:
            yield payload

    ticks = iter(range(100))
    return [event async for event in AnswerReader(lambda: float(next(ticks))).events(arriving())]


async def test_text_stages_and_attachments_arrive_in_order() -> None:
    received = await events(
        chunk({"role": "assistant"}),
        stage(0, name="calculator: 1+1"),
        stage(0, content="2"),
        stage(0, name=" [0.1s]"),
        stage(0, status="completed"),
        chunk({"content": "It is 2."}),
        chunk({"custom_content": {"attachments": [{"index": 0, "type": "image/png", "url": "files/b/x.png"}]}}),
        chunk(finish="stop"),
        b'{"choices": [], "usage": {"prompt_tokens": 1}}',
        b"[DONE]",
    )
    assert received == [
        StageOpened(0, "calculator: 1+1", 0),
        StageClosed(0, "calculator: 1+1 [0.1s]", 0, 1.0, False),
        TextPiece("It is 2."),
        Attachment(type="image/png", url="files/b/x.png"),
        AnswerEnded("stop"),
    ]


async def test_sub_stages_are_indented_and_failures_reported() -> None:
    received = await events(
        stage(0, name="Step 3"), stage(1, name="search", parent_stage_index=0), stage(1, status="failed"),
        chunk(finish="stop"),
    )  # fmt: skip
    assert received[1:3] == [StageOpened(1, "search", 1), StageClosed(1, "search", 1, 1.0, True)]


async def test_an_error_event_ends_the_answer_with_its_display_message() -> None:
    received = await events(
        chunk({"content": "Partly"}),
        b'{"error": {"message": "500 from x", "display_message": "Try again."}}',
        b"[DONE]",
    )
    assert received == [TextPiece("Partly"), AnswerFailed("Try again.")]


async def test_an_answer_without_its_end_is_a_failure() -> None:
    assert (await events(chunk({"content": "Half"})))[-1] == AnswerFailed("The answer broke off before its end.")
    assert await events(b"<html>") == [AnswerFailed("What came is not a DIAL answer.")]


async def test_json_output_is_one_object_per_line() -> None:
    out = io.StringIO()
    output = JsonOutput(out)
    for event in await events(chunk({"content": "Grüße\n"}), stage(0, name="s"), chunk(finish="stop")):
        output.show(event)
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"event": "text", "text": "Grüße\n"},
        {"event": "stage_opened", "index": 0, "name": "s", "depth": 0},
        {"event": "end", "reason": "stop"},
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_model_cannot_steer_the_terminal() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for out in (terminal, pipe):
        TerminalOutput(out).show(TextPiece("a\x1b[2Jb\tc\n"))
    assert terminal.getvalue() == "a[2Jb\tc\n"
    assert pipe.getvalue() == "a\x1b[2Jb\tc\n"
