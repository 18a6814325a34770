"""A failure of the model is blamed on what failed: callers read what it was, operators also where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession

from task.llm.scripted import says, wants
from task.local.core.models import UpstreamModel
from task.settings import Settings
from tests.support.agent import running_agent
from tests.support.chat_reader import chat_reader
from tests.support.core import API_KEY, local_core
from tests.support.http_api import MODEL, NOWHERE, Api, http_api
from tests.support.upstream import Answer, openai_upstream

ONCE: dict[str, Any] = {"deployment_name": MODEL, "llm": {"attempts": 1}}
UNLIMITED = 2**63 - 1
SPENT = (
    "Hit token rate limit. Minute limit: 58 / 50 tokens. Day limit: 58 / 10000 tokens. "
    f"Week limit: 58 / {UNLIMITED} tokens. Month limit: 58 / {UNLIMITED} tokens."
)
LIMIT = Answer(
    (json.dumps({"error": {"message": SPENT, "code": "429"}}).encode(),),
    429,
    {"Content-Type": "application/json", "retry-after": "44"},
)


def settings(tmp_path: Path, dial_endpoint: str, **more: Any) -> Settings:
    values = {"dial_endpoint": dial_endpoint, "data_dir": tmp_path / "agent", "dial_api_key": API_KEY, **ONCE}
    return Settings.model_validate({**values, **more})


@pytest.mark.fault(
    "model: a person's token or request limit at DIAL Core is spent, at a door, in a tool, or without its time"
)
async def test_a_persons_spent_limit_is_named_at_every_door(tmp_path: Path) -> None:
    sentence = "Your limit for the model test-model is used up: 58 of 50 tokens in the last minute. "
    sentence += "It opens again in 44 seconds."
    async with (
        openai_upstream(then=LIMIT) as core,
        running_agent(settings(tmp_path, core.endpoint)) as url,
        chat_reader(url, "key") as reader,
        ClientSession() as session,
    ):
        streamed, whole = await reader.ask("Hi"), await reader.ask("Hi", stream=False)
        reply = await Api(url, core, session).complete("Hi")
    for answer in (streamed, whole):
        assert answer.error is not None
        assert answer.error["display_message"].startswith(sentence)
        assert answer.error["code"] == "429"
    assert (reply.status, reply.headers["Retry-After"]) == (429, "44")
    assert reply.error["message"].startswith(sentence)


@pytest.mark.fault(
    "model: a person's token or request limit at DIAL Core is spent, at a door, in a tool, or without its time"
)
async def test_a_limit_that_is_spent_in_a_tool_reaches_the_model_as_one(tmp_path: Path) -> None:
    call = wants("image_generation_tool", prompt="a cat")
    async with (
        openai_upstream(call, LIMIT, LIMIT, says("Sorry.")) as core,
        running_agent(settings(tmp_path, core.endpoint)) as url,
        chat_reader(url, "key") as reader,
    ):
        await reader.ask("Paint a cat")
        result = core.requests[-1].messages[-1]["content"]
    assert "Your limit for the model dall-e-3 is used up: 58 of 50 tokens in the last minute" in result


@pytest.mark.fault("model: DIAL Core is away, for a model, for a caller's identity, or for a file")
async def test_a_core_that_is_away_is_named_and_only_the_log_has_its_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_agent(settings(tmp_path, NOWHERE)) as url, ClientSession() as session, openai_upstream() as none:
        reply = await Api(url, none, session).complete("Hi")
    assert reply.status == 502
    assert reply.error["message"].startswith("DIAL Core cannot be reached, so the model test-model was not asked.")
    assert "127.0.0.1" not in reply.text
    assert f"at {NOWHERE}/openai/deployments/test-model/chat/completions" in caplog.text
    assert reply.error["reference"] in caplog.text


@pytest.mark.fault("model: DIAL Core is away, for a model, for a caller's identity, or for a file")
async def test_a_core_that_cannot_be_asked_for_a_key_or_a_file_is_named_and_only_the_log_has_its_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for mode, path, code in (("dial", "/traces", "core_unavailable"), ("open", "/v1/files", "files_unavailable")):
        options = settings(tmp_path / mode, NOWHERE, http={"mode": mode})
        async with running_agent(options) as url, ClientSession() as session, openai_upstream() as none:
            reply = await Api(url, none, session, {"Api-Key": "key"}).get(path)
        assert (reply.status, reply.error["code"]) == (503, code)
        assert "DIAL Core" in reply.error["message"]
        assert "127.0.0.1" not in reply.text
        [line] = [line.getMessage() for line in caplog.records if reply.error["reference"] in line.getMessage()]
        assert line.endswith(f"no answer from DIAL Core at {NOWHERE}")


@pytest.mark.fault("model: the model's server behind Core is down")
async def test_an_upstream_that_is_down_behind_core_is_not_blamed_on_core(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reply = await behind_local_core(tmp_path, f"{NOWHERE}/v1")
    assert reply.status == 502
    assert "DIAL Core finds no working server for the model test-model" in reply.error["message"]
    assert "127.0.0.1" not in reply.text
    assert f"nothing answers at {NOWHERE}" in caplog.text


@pytest.mark.fault("model: a provider's address without /v1, or another path without a chat")
async def test_an_address_without_v1_is_not_taken_for_a_missing_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with openai_upstream(then=says("Hello")) as upstream:
        through_core = await behind_local_core(tmp_path, upstream.endpoint)
        async with http_api(tmp_path=tmp_path, openai_base_url=upstream.endpoint, **ONCE) as api:
            direct = await api.complete("Hi")
    for reply in (through_core, direct):
        assert "The server of the model test-model answers, but has no chat at its address." in reply.error["message"]
        assert "127.0.0.1" not in reply.text
    assert f"at {upstream.endpoint}/chat/completions" in caplog.text


async def behind_local_core(tmp_path: Path, base_url: str) -> Any:
    keys = {"keys": {API_KEY: {"project": "p", "role": "r"}}}
    async with (
        local_core(keys, tmp_path, model=UpstreamModel(base_url, MODEL)) as core,
        running_agent(settings(tmp_path, core.url)) as url,
        openai_upstream() as none,
        ClientSession() as session,
    ):
        return await Api(url, none, session).complete("Hi")
