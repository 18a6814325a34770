"""The fast route says what the DIAL SDK's own route says, in the same order, and keeps quiet streams alive."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from aidial_sdk import DIALApp, HTTPException
from aidial_sdk.chat_completion import ChatCompletion, Choice, FinishReason, Request, Response, Status

from task.dial.fast_chunks import FastDialApp

Write = Callable[[Request, Response], Coroutine[Any, Any, None]]
ODD_TEXTS = ("", 'quotes " and \\ slashes', "line\nbreak\r\t\x00\x7f", "é 漢 🙂 \u2028", "</s>")


class Answers(ChatCompletion):
    def __init__(self, write: Write) -> None:
        self._write = write

    async def chat_completion(self, request: Request, response: Response) -> None:
        await self._write(request, response)


async def text(request: Request, response: Response) -> None:
    response.append_header("X-Mine", "yes")
    with response.create_single_choice() as choice:
        for piece in ODD_TEXTS:
            choice.append_content(piece)
            await asyncio.sleep(0)
        choice.append_reasoning_content("Hm.")


async def everything(request: Request, response: Response) -> None:
    with response.create_single_choice() as choice:
        with choice.create_stage("Look") as stage:
            stage.append_name(" closer")
            stage.append_content("found")
            stage.add_attachment(type="text/plain", title="t", data="d")
            with stage.create_stage("Inner"):
                pass
        choice.create_stage("Failing").open()
        failing = choice.create_stage("Failed")
        failing.open()
        failing.close(Status.FAILED)
        choice.add_attachment(type="text/plain", title="t", url="files/b/t.txt")
        choice.create_function_tool_call("call_1", "search", '{"q": 1}')
        choice.set_form_schema({"type": "object"})
        choice.set_state({"large": 2**70, "keys": {1: None}, "list": [{"a": 1.5}]})
        choice.close(FinishReason.LENGTH)
    response.set_usage(3, 4)
    response.add_usage_per_model("m", 1, 2)
    response.set_discarded_messages([0])


async def two_choices(request: Request, response: Response) -> None:
    for _ in range(response.n):
        with response.create_choice() as choice:
            choice.append_content("one of two")


async def refused(request: Request, response: Response) -> None:
    raise HTTPException("no", 422, code="mine", display_message="Not so.", headers={"Retry-After": "1"})


async def failed_within(request: Request, response: Response) -> None:
    with response.create_single_choice() as choice:
        choice.append_content("So far")
        raise HTTPException("broke", 500, code="mine", display_message="It broke.")


async def failed_after_the_usage(request: Request, response: Response) -> None:
    response.create_single_choice().open()
    response.set_usage(1, 2)
    raise HTTPException("broke", 500)


async def crashed(request: Request, response: Response) -> None:
    raise ValueError("a bug")


async def crashed_within(request: Request, response: Response) -> None:
    response.create_single_choice().open()
    raise ValueError("a bug")


async def no_choice(request: Request, response: Response) -> None:
    response.append_header("X-Mine", "yes")


WRITERS = [
    text, everything, two_choices, refused, failed_within, failed_after_the_usage, crashed, crashed_within, no_choice,
]  # fmt: skip


async def answered(app: DIALApp, write: Write, *, stream: bool, heartbeat: float | None = None) -> httpx.Response:
    app.add_chat_completion("d", Answers(write), heartbeat_interval=heartbeat)
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": stream, "n": 2 if write is two_choices else 1}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as client:
        return await client.post("/openai/deployments/d/chat/completions", json=body, headers={"Api-Key": "k"})


def parsed(response: httpx.Response) -> tuple[int, dict[str, str], list[Any]]:
    """Status, headers, and the events without what differs from answer to answer; a JSON body counts as one event."""
    streamed = response.headers["content-type"].startswith("text/event-stream")
    events = [event.removeprefix("data: ") for event in response.text.split("\n\n") if event] if streamed else []
    payloads = [event if event == "[DONE]" else json.loads(event) for event in events or [response.text]]
    for payload in payloads:
        if isinstance(payload, dict):
            payload.pop("id", None)
            payload.pop("created", None)
    headers = {name: value for name, value in response.headers.items() if name != "content-length"}
    return response.status_code, headers, payloads


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
@pytest.mark.parametrize("stream", [True, False])
async def test_the_fast_route_says_what_the_sdk_says(write: Write, stream: bool) -> None:
    stock, fast = await answered(DIALApp(), write, stream=stream), await answered(FastDialApp(), write, stream=stream)
    assert parsed(fast) == parsed(stock)
    assert [list(event) for event in parsed(fast)[2]] == [list(event) for event in parsed(stock)[2]], "keys in order"


@pytest.mark.parametrize("stream", [True, False])
async def test_half_a_character_does_not_break_the_answer(stream: bool) -> None:
    async def write(request: Request, response: Response) -> None:
        with response.create_single_choice() as choice:
            choice.append_content("half \ud83d")

    status, _, events = parsed(await answered(FastDialApp(), write, stream=stream))
    assert status == 200
    assert "half \ud83d" in [choice["content"] for choice in map(said, events)]


def said(event: Any) -> dict[str, Any]:
    choice = {} if event == "[DONE]" else event["choices"][0]
    return {"content": None, **choice.get("delta", {}), **choice.get("message", {})}


async def test_what_gathers_leaves_together_what_is_alone_leaves_at_once_and_the_last_events_end_the_answer() -> None:
    may_continue = asyncio.Event()

    async def write(request: Request, response: Response) -> None:
        with response.create_single_choice() as choice:
            for word in ("a", "b", "c"):
                choice.append_content(word)
            await may_continue.wait()
            choice.append_content("d")

    bodies = await called(write, lambda body: may_continue.set() if body else None)
    assert [body.count(b"data: ") for body in bodies] == [4, 3], "the last: d, the choice's end, [DONE]"
    assert bodies[-1].endswith(b"data: [DONE]\n\n")


async def test_a_stage_leaves_with_what_follows_soon_and_alone_where_nothing_does() -> None:
    shown = asyncio.Event()

    async def write(request: Request, response: Response) -> None:
        with response.create_single_choice() as choice:
            with choice.create_stage("Fast") as stage:
                await asyncio.sleep(0)
                stage.append_content("found")
            choice.append_content("So far")
            with choice.create_stage("Slow"):
                await shown.wait()

    bodies = await called(write, lambda body: shown.set() if b"Slow" in body else None)
    [first] = [body for body in bodies if b"Fast" in body]
    assert b"So far" in first, "one write"


async def test_a_flush_waits_until_what_was_written_has_been_taken() -> None:
    async def write(request: Request, response: Response) -> None:
        await response.aflush()  # nothing waits yet
        with response.create_single_choice() as choice:
            choice.append_content("first")
            await response.aflush()
            choice.append_content("second")

    bodies = await called(write)
    assert [b"first" in body for body in bodies if b"content" in body] == [True, False]


async def test_a_quiet_stream_gets_heartbeats_until_it_continues() -> None:
    beats = asyncio.Semaphore(0)

    async def write(request: Request, response: Response) -> None:
        with response.create_single_choice() as choice:
            for _ in range(3):
                await beats.acquire()
            choice.append_content("at last")

    bodies = await called(write, lambda body: beats.release() if body == b": heartbeat\n\n" else None, heartbeat=0.01)
    assert b"at last" in bodies[-1]
    assert b"[DONE]" in bodies[-1]


async def test_a_heartbeat_that_is_due_when_the_answer_ends_does_not_follow_its_end() -> None:
    async def write(request: Request, response: Response) -> None:
        with response.create_single_choice() as choice:
            choice.append_content("first")
            await response.aflush()
            time.sleep(0.05)  # the loop finds the timer and this task ready in the same round
            await asyncio.sleep(0)

    assert (await called(write, heartbeat=0.02))[-1].endswith(b"data: [DONE]\n\n")


async def test_text_that_waits_for_the_end_of_the_answer_is_not_held_back() -> None:
    sent = asyncio.Event()

    async def write(request: Request, response: Response) -> None:
        choice: Choice = response.create_single_choice()
        choice.open()
        choice.append_content("now")
        choice.close()  # its chunk waits for the usage
        await sent.wait()
        response.set_usage(1, 1)

    await called(write, lambda body: sent.set() if b'"content":"now"' in body else None)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_caller_who_leaves_ends_the_producer(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def write(request: Request, response: Response) -> None:
        with response.create_single_choice() as choice:
            choice.append_content("Once upon")
            started.set()
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    with caplog.at_level(logging.DEBUG):
        await called(write, stream=stream, until=started)
    assert cancelled.is_set()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def called(
    write: Write,
    when: Callable[[bytes], None] = lambda _: None,
    *,
    stream: bool = True,
    heartbeat: float | None = None,
    until: asyncio.Event | None = None,
) -> list[bytes]:
    """What one request to the fast application is sent, each piece given to `when`; the caller leaves after `until`."""
    bodies: list[bytes] = []
    app = FastDialApp()
    app.add_chat_completion("d", Answers(write), heartbeat_interval=heartbeat)
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": stream}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await (until or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            assert message.get("more_body") is (b"[DONE]" not in message["body"]) or not stream
            bodies.append(message["body"])
            when(message["body"])

    scope = {
        "type": "http", "method": "POST", "path": "/openai/deployments/d/chat/completions", "query_string": b"",
        "headers": [(b"api-key", b"k")], "client": ("127.0.0.1", 1), "asgi": {"version": "3.0", "spec_version": "2.3"},
    }  # fmt: skip
    answering = asyncio.create_task(app(scope, receive, send))
    try:
        # `wait_for` does not notice: the SDK takes a cancellation.
        done, _ = await asyncio.wait({answering}, timeout=20)
        assert done, "the answer does not end"
        await answering
    finally:
        answering.cancel()
    return bodies
