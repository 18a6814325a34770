"""The test upstream refuses what providers refuse."""

from typing import Any

import aiohttp
import pytest

from task.llm.scripted import says
from tests.support.upstream import openai_upstream

USER = {"role": "user", "content": "hi"}
CALL = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
ASKED = {"role": "assistant", "tool_calls": [CALL]}
ANSWERED = {"role": "tool", "tool_call_id": "a", "content": "ok"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def with_call(**changes: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "{}"} | changes}]}


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "no messages": ({"messages": []}, "too short"),
    "a null": ({"messages": [USER], "temperature": None}, "null in temperature"),
    "stream options without a stream": ({"messages": [USER], "stream_options": {"include_usage": True}}, "stream_opt"),
    "empty tools": ({"messages": [USER], "tools": []}, "'tools'"),
    "tool choice without tools": ({"messages": [USER], "tool_choice": "auto"}, "tool_choice"),
    "a tool's name": ({"messages": [USER], "tools": [{"function": {"name": "a b"}}]}, "does not match"),
    "two tools of one name": ({"messages": [USER], "tools": [TOOL, TOOL]}, "used twice"),
    "an unknown role": ({"messages": [{"role": "bot", "content": "x"}]}, "role"),
    "no content": ({"messages": [{"role": "user"}]}, "content"),
    "an orphan tool message": ({"messages": [USER, ANSWERED]}, "preceding message"),
    "two answers to one call": ({"messages": [USER, ASKED, ANSWERED, ANSWERED]}, "preceding message"),
    "an unanswered call": ({"messages": [USER, ASKED]}, "no answer to: a"),
    "a call answered too late": ({"messages": [USER, ASKED, USER, ANSWERED]}, "no answer to: a"),
    "a tool message that is no text": ({"messages": [USER, ASKED, ANSWERED | {"content": None}]}, "must be a string"),
    "no calls": ({"messages": [USER, {"role": "assistant", "tool_calls": []}]}, "tool_calls"),
    "one id twice": ({"messages": [USER, {"role": "assistant", "tool_calls": [CALL, CALL]}]}, "id of its own"),
    "a called name": ({"messages": [USER, with_call(name="a.b"), ANSWERED]}, "function name"),
    "arguments that are no object": ({"messages": [USER, with_call(arguments="[]"), ANSWERED]}, "arguments"),
    "arguments that are no JSON": ({"messages": [USER, with_call(arguments="{"), ANSWERED]}, "arguments"),
}


@pytest.mark.parametrize(("body", "words"), FAULTS.values(), ids=FAULTS)
async def test_an_invalid_request_is_refused(body: dict[str, Any], words: str) -> None:
    async with (
        openai_upstream(then=says("never")) as peer,
        aiohttp.request("POST", f"{peer.url}/chat/completions", json={"model": "m", **body}) as response,
    ):
        answer = await response.json()
    assert response.status == 400
    assert words in answer["error"]["message"]
