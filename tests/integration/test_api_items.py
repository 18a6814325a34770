"""What messages and items may hold beside plain text, in both of OpenAI's APIs, and how errors in them are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from task.llm.scripted import says
from tests.support.http_api import http_api, said

COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/responses"
REFUSAL = {"type": "refusal", "refusal": "I cannot do that."}
UNREAD = "[A picture or a file stands here; of a tool's result only the text is read.]"


def called(**more: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}", **more}


def output(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": "call_1", "output": list(parts)}


async def test_a_refusal_in_the_history_is_the_assistants_text(tmp_path: Path) -> None:
    refusing = [
        {"role": "assistant", "content": [REFUSAL]},
        {"role": "assistant", "content": None, "refusal": "I cannot do that."},
    ]
    async with http_api(then=says("ok"), tmp_path=tmp_path) as api:
        for message in refusing:
            assert (await api.post(COMPLETIONS, {"messages": [said("?"), message, said("Why?")]})).status == 200
        items = [said("?"), {"type": "message", "role": "assistant", "content": [REFUSAL]}, said("Why?")]
        assert (await api.post(RESPONSES, {"input": items})).status == 200
        sent = [request.messages[1:] for request in api.upstream.requests]
    assert sent == [[said("?"), said("I cannot do that.", "assistant"), said("Why?")]] * 3


async def test_a_calls_output_in_parts_is_read_as_text_with_a_note_of_what_is_not_read(tmp_path: Path) -> None:
    parts = [
        {"type": "input_text", "text": "Found:"}, {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_file", "file_data": "QUJD"}, {"type": "input_text", "text": "that is all"},
    ]  # fmt: skip
    async with http_api(then=says("ok"), tmp_path=tmp_path) as api:
        reply = await api.post(RESPONSES, {"input": [said("?"), called(), output(*parts)]})
        sent = api.upstream.requests[0].messages[-1]
    assert reply.status == 200
    assert (sent["role"], sent["content"]) == ("tool", f"Found:\n{UNREAD}\n{UNREAD}\nthat is all")


async def test_a_picture_of_a_response_may_be_a_file_that_was_uploaded(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        unknown = {"type": "input_image", "file_id": "file-0000", "detail": "auto"}
        neither = {"type": "input_image", "detail": "auto"}
        replies = [await api.post(RESPONSES, {"input": [said([part])]}) for part in (unknown, neither)]  # type: ignore[arg-type]
    assert [(reply.status, reply.error["message"]) for reply in replies] == [
        (404, "there is no file 'file-0000'"), (400, "A picture needs image_url or file_id."),
    ]  # fmt: skip


MISFITS: list[tuple[str, dict[str, Any], str, str]] = [
    (RESPONSES, {"input": 5}, "input", "input: Input should be a valid string"),
    (RESPONSES, {"input": [{"role": "robot", "content": "?"}]}, "input.0.role", "input.0.role: Input should be"),
    (RESPONSES, {"input": [{"type": "reasoning", "id": "rs_1"}]}, "input.0", "input.0: "),
    (
        RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input.0.content.0.text",
        "input.0.content.0.text: Field required",
    ),
    (RESPONSES, {"input": [{"type": "function_call", "name": "x"}]}, "input.0.call_id", "input.0.call_id: Field"),
    (COMPLETIONS, {"messages": [said([{"type": "text"}])]}, "messages.0.content.0.text", "Field required"),  # type: ignore[arg-type]
    (COMPLETIONS, {"messages": [said("?")], "stop": 5}, "stop", "stop: Input should be a valid string"),
]  # fmt: skip


async def test_a_misfit_is_named_by_its_place_in_the_request_and_not_by_our_types(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        for path, body, param, fault in MISFITS:
            reply = await api.post(path, body)
            assert (reply.status, reply.error["param"]) == (400, param), reply.text
            assert fault in reply.error["message"]
            assert not any(sign in reply.error["message"] for sign in ("[union", "list[", "function-", "InputMessage"))
