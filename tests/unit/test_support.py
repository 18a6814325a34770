"""The test support itself: benchmark figures, and the refusals of the test upstream."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from task.llm.scripted import says
from tests.benchmarks.figures import Figure
from tests.support.upstream import openai_upstream


@pytest.mark.parametrize(
    ("figure", "slow", "missed"),
    [
        (Figure("almost a tenth over its goal", 1.09, "ms", 1.0), 1, False),
        (Figure("more than a tenth over", 1.11, "ms", 1.0), 1, True),
        (Figure("over its own tolerance", 1.02, "ms", 1.0, tolerance=0.01), 1, True),
        (Figure("one where none may be", 1, "", 0), 1, True),
        (Figure("slow on a slow machine", 1.9, "ms", 1.0), 2, False),
        (Figure("slow on a fast machine", 0.9, "ms", 1.0), 0.5, True),
        (Figure("far too few of them", 270, "pages/s", 300, at_least=True), 1, True),
        (Figure("few of them on a slow machine", 140, "pages/s", 300, at_least=True), 2, False),
        (Figure("large on a slow machine too", 200, "MB", 150), 2, True),
        (Figure("a good ratio on a slow machine", 30, "µs", bare=5, bare_goal=7), 1, False),
        (Figure("a bad ratio on a slow machine", 40, "µs", bare=5, bare_goal=7), 9, True),
        (Figure("on a machine too busy to tell", 9.0, "ms", 1.0, judged=False), 1, False),
    ],
    ids=lambda value: value.name if isinstance(value, Figure) else "",
)
def test_a_figure_misses_its_goal_by_more_than_its_tolerance(figure: Figure, slow: float, missed: bool) -> None:
    assert figure.missed(slow) is missed


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
