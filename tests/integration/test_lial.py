"""LIAL on its own, as the framework's reference shows it: any provider, or an adapter of a program's own."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from task.console.lial import LIALManager, LLMAdapterInterface
from task.context.dcm_manager import DCMManager
from task.errors import ComponentInitError, FrameworkError, LIALError, LIALInitError
from task.llm.scripted import says, wants
from tests.support.upstream import Upstream, http_error, openai_upstream

HELLO = [{"role": "user", "content": "Hello"}]


def started(provider: str, settings: dict[str, Any], context: DCMManager | None = None) -> LIALManager:
    lial = LIALManager(provider, settings, context)
    lial.initialize()
    return lial


def at(upstream: Upstream, provider: str) -> dict[str, Any]:
    url = upstream.endpoint if provider == "dial" else upstream.url
    return {"model": "test-model", "api_key": "sk-test", "base_url": url, "temperature": 0.5, "top_k": None}


async def answered(lial: LIALManager, messages: list[dict[str, Any]]) -> dict[str, Any]:
    return await asyncio.to_thread(lial.send_messages, messages)


@pytest.mark.parametrize("provider", ["openai", "gemini", "anthropic", "dial"])
async def test_each_provider_answers_by_configuration_only(provider: str) -> None:
    async with openai_upstream(says("Hi."), api_key="sk-test") as upstream:
        response = await answered(started(provider, at(upstream, provider)), HELLO)
        [request] = upstream.requests
    assert response == {"conversation": "Hi.", "tool_request": None}
    assert request.body["temperature"] == 0.5


async def test_a_wanted_call_is_the_documented_request() -> None:
    async with openai_upstream(wants("calculator", expression="1+1") & says("I calculate.")) as upstream:
        response = await answered(started("openai", at(upstream, "openai")), HELLO)
    request = response["tool_request"]
    assert (request["tool_name"], request["parameters"]) == ("calculator", {"expression": "1+1"})
    assert request["request_id"]
    assert set(request["icerc"]) == {"intent", "command", "expected_outcome", "risk_assessment"}


async def test_the_initial_prompt_of_the_context_comes_first_unless_there_is_another(tmp_path: Path) -> None:
    (tmp_path / "context.md").write_text("## Initial Prompt\n\n```prompt\nBe a pirate.\n```\n")
    context = DCMManager(str(tmp_path / "context.md"))
    context.initialize()
    async with openai_upstream(then=says("Arr.")) as upstream:
        lial = started("openai", at(upstream, "openai"), context)
        await answered(lial, HELLO)
        await answered(lial, [{"role": "system", "content": "Be a poet."}, *HELLO])
        prompts = [request.messages[0]["content"] for request in upstream.requests]
    assert prompts == ["Be a pirate.", "Be a poet."]


@pytest.mark.fault("console: a model that refuses, or dies in the middle of a table")
async def test_a_model_that_refuses_and_what_is_no_conversation_are_the_documented_error() -> None:
    wrong: list[list[dict[str, Any]]] = [HELLO, [], [{"role": "nobody", "content": "x"}], [{"content": "x"}]]
    async with openai_upstream(http_error(401), then=http_error(400)) as upstream:
        for messages in wrong:
            with pytest.raises(LIALError) as error:
                await answered(started("openai", at(upstream, "openai")), messages)
            assert isinstance(error.value, FrameworkError)
            assert "sk-test" not in str(error.value)
    with pytest.raises(ComponentInitError):
        LIALManager("openai", {}).send_messages(HELLO)


@pytest.mark.fault(
    "console: bad YAML, an unknown key, a missing variable, an unknown provider, an empty question or an "
    "unknown session at the start"
)
@pytest.mark.parametrize(
    ("provider", "settings", "words"),
    [
        ("gemni", {}, "nearest is gemini"),
        ("openai", {"modle": "x"}, "modle"),
        ("openai", {"temperature": "hot"}, "temperature"),
    ],
)
def test_settings_that_cannot_be_used_are_one_line(provider: str, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(LIALInitError) as error:
        started(provider, settings)
    assert words in str(error.value).lower()
    assert "\n" not in str(error.value)


def test_an_adapter_of_a_programs_own_answers() -> None:
    class Echo(LLMAdapterInterface):
        def send_messages(
            self, messages: list[dict[str, Any]], options: dict[str, Any] | None = None
        ) -> dict[str, Any]:
            return {"conversation": messages[-1]["content"], "tool_request": None}

    lial = LIALManager("any", {}, adapter=Echo())
    lial.initialize()
    assert lial.send_messages(HELLO)["conversation"] == "Hello"
