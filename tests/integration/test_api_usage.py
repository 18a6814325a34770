"""The tokens of an answer, also those that cost less or show nothing, are reported on every way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task.llm.base import DelegatedUsage, Usage
from task.llm.scripted import says, wants
from tests.support.http_api import http_api
from tests.support.upstream import Item
from tests.support.upstream_wire import Answer, Framing, Received, chunk, framed_parts

CALCULATION = (wants("calculator", expression="25*47"), says("1175", usage=Usage(100, 40, 64, 32)))
DETAILS = {"prompt_tokens_details": {"cached_tokens": 64}, "completion_tokens_details": {"reasoning_tokens": 32}}


async def test_cached_and_reasoning_tokens_are_in_completions_responses_events_and_traces(tmp_path: Path) -> None:
    async with http_api(*CALCULATION * 3, tmp_path=tmp_path) as api:
        whole = (await api.complete("?")).json
        *_, last = (await api.complete("?", stream=True, stream_options={"include_usage": True})).chunks
        response = (await api.post("/v1/responses", {"input": "?"})).json
        stored = (await api.get(f"/v1/responses/{response['id']}")).json
        events = await api.events(response["run_id"])
        trace = (await api.get(f"/traces/{whole['trace_id']}")).json
    counted = {"prompt_tokens": 110, "completion_tokens": 45, "total_tokens": 155, **DETAILS}
    assert [whole["usage"], last["usage"]] == [counted, counted]
    assert response["usage"] == stored["usage"] == {
        "input_tokens": 110, "input_tokens_details": {"cached_tokens": 64},
        "output_tokens": 45, "output_tokens_details": {"reasoning_tokens": 32}, "total_tokens": 155,
    }  # fmt: skip
    assert DETAILS.items() <= next(event for event in events if event["type"] == "usage").items()
    assert trace["usage"]["test-model"]["cached_tokens"] == 64
    assert trace["turns"][-1]["usage"]["reasoning_tokens"] == 32


def counting(**usage: Any) -> Item:
    """An answer with this usage."""

    def answer(received: Received) -> Answer:
        counted = {"prompt_tokens": 9, "completion_tokens": 1, **usage}
        last = chunk(received, {}, "stop") | {"usage": counted}
        return Answer(tuple(framed_parts([chunk(received, {"content": "ok"}), last], Framing())))

    return answer


@pytest.mark.parametrize(
    "usage",
    [
        {}, {"prompt_tokens_details": None}, {"prompt_tokens_details": {"cached_tokens": None}},
        {"prompt_tokens_details": [], "completion_tokens_details": {"reasoning_tokens": "many"}},
    ],
)  # fmt: skip
async def test_a_model_that_reports_no_such_tokens_has_none(usage: dict[str, Any], tmp_path: Path) -> None:
    async with http_api(counting(**usage), tmp_path=tmp_path) as api:
        counted = (await api.complete("?")).json["usage"]
    assert counted["total_tokens"] == 10
    assert counted["prompt_tokens_details"] == {"cached_tokens": 0}
    assert counted["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_what_a_deployment_took_itself_is_what_the_models_behind_it_did_not() -> None:
    asked = DelegatedUsage(100, 40, 64, 32, models=(("writer", Usage(60, 30, 60, 30)),))
    assert asked.by_model("app") == {"writer": Usage(60, 30, 60, 30), "app": Usage(40, 10, 4, 2)}
    assert asked + Usage(1, 1, 1, 1) == Usage(101, 41, 65, 33)
