"""Providers' differences are data, found by address and model name, and applied when a request is written."""

from collections.abc import Sequence
from typing import Any, get_args

import orjson
import pytest

from task.conversation.messages import FunctionCall, Message, Role, ToolCall, assistant, system, tool_message, user
from task.llm.base import ModelOptions, ToolSchema
from task.llm.chat_request import DEEPSEEK, GENERIC, PROFILES, THINKING, ProviderProfile, RequestBodies, profile_for
from task.settings.tree import ProfileName, _Local

CALL = ToolCall("call_1", FunctionCall("f", '{"x": 1}'))
TOOL: ToolSchema = {"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}
PLAIN = ModelOptions()
HISTORY = [system("Be brief."), user("Go"), assistant(None, [CALL]), tool_message(CALL, "ok")]


def written(
    profile: ProviderProfile = GENERIC,
    messages: Sequence[Message] = HISTORY,
    tools: Sequence[ToolSchema] = (TOOL,),
    options: ModelOptions = PLAIN,
) -> dict[str, Any]:
    return orjson.loads(RequestBodies().body("m", messages, tools, options, profile))


@pytest.mark.parametrize(
    ("model", "base_url", "name"),
    [
        ("gpt-4o", "https://api.openai.com/v1", "openai"),
        ("o3-mini", "https://api.openai.com/v1", "reasoning"),
        ("gpt-5.1", "https://api.openai.com/v1", "reasoning"),
        ("gpt-5-chat-latest", "https://api.openai.com/v1", "openai"),
        ("gpt-4o", "https://x.openai.azure.com/openai/deployments/gpt-4o", "azure"),
        ("o1", "https://x.openai.azure.com/openai/v1", "azure-reasoning"),
        ("gemini-3-pro", "https://generativelanguage.googleapis.com/v1beta/openai", "gemini"),
        ("claude-opus-4-6", "https://api.anthropic.com/v1/", "anthropic"),
        ("deepseek-chat", "https://api.deepseek.com", "deepseek"),
        ("kimi-k2-thinking", "https://api.moonshot.ai/v1", "deepseek"),
        ("deepseek-r1", "http://127.0.0.1:9000/v1", "thinking"),
        ("deepseek-r1", "http://127.0.0.1:8000/v1", "vllm"),
        ("qwen3", "http://127.0.0.1:11434/v1", "ollama"),
        ("o1-open", "http://box:1234/v1/", "lm-studio"),
        ("qwen3", "http://127.0.0.1:8080/v1", "llama.cpp"),
        ("gpt-oss-20b", "http://127.0.0.1:8000/v1", "vllm"),
        ("gpt-4o", "http://proxy:8000/v1", "generic"),
        ("gpt-5.1", "http://proxy:8080/v1", "reasoning"),
        ("openai/o3-mini", "http://proxy:8080/v1", "reasoning"),
        ("anthropic/claude-sonnet-4", "http://proxy:8000/v1", "generic"),
        ("gemini-3-pro", "http://proxy:8000/v1", "generic"),
        ("gpt-4o", "http://core:8080/openai", "generic"),
        ("qwen3", "http://127.0.0.1/v1", "generic"),
        ("gpt-4o", "https://api.openai.com.example.org/v1", "generic"),
        ("gpt-4o", None, "generic"),
        ("openai/o4-mini", None, "reasoning"),
        ("claude-3o1", None, "generic"),
    ],
)
def test_address_and_name_determine_the_profile(model: str, base_url: str | None, name: str) -> None:
    profile = profile_for(model, base_url)
    assert profile.name == name
    assert (profile.replays_reasoning == "present") is ("r1" in model), "whichever server serves a thinking model"


def test_settings_can_name_every_profile_and_only_servers_of_open_models_have_calls_in_text() -> None:
    assert get_args(ProfileName) == tuple(PROFILES)
    assert {name for name, profile in PROFILES.items() if profile.text_calls} == {*get_args(_Local)}


def test_a_plain_request_asks_for_a_stream_with_usage_and_contains_no_nulls() -> None:
    assert written() == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Go"},
            {"role": "assistant", "tool_calls": [CALL.as_dict()]},
            {"role": "tool", "content": "ok", "tool_call_id": "call_1", "name": "f"},
        ],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [TOOL],
    }


def test_options_are_sent_under_their_names_and_extra_as_it_is() -> None:
    options = ModelOptions(
        temperature=0.0, top_p=0.9, max_tokens=7, stop=["x"], seed=1, tool_choice="auto", reasoning_effort="low",
        extra={"user": "u", "response_format": {"type": "json_object"}, "logit_bias": None},
    )  # fmt: skip
    sent = written(options=options)
    assert {name: sent[name] for name in sent.keys() - written().keys()} == {
        "temperature": 0.0, "top_p": 0.9, "max_tokens": 7, "stop": ["x"], "seed": 1, "tool_choice": "auto",
        "reasoning_effort": "low", "user": "u", "response_format": {"type": "json_object"},
    }  # fmt: skip
    without = written(tools=(), options=ModelOptions(tool_choice="none", extra={"parallel_tool_calls": False}))
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & without.keys()


def test_each_provider_gets_what_it_takes_and_what_it_would_refuse_is_dropped_and_named() -> None:
    sampling = ModelOptions(temperature=0.3, top_p=0.5, max_tokens=7, stop=["x"], reasoning_effort="low")
    sent = written(PROFILES["reasoning"], options=sampling)
    assert sent["messages"][0]["role"] == "developer"
    assert (sent["max_completion_tokens"], sent["reasoning_effort"]) == (7, "low")
    assert not {"temperature", "top_p", "max_tokens", "stop"} & sent.keys()
    assert PROFILES["reasoning"].dropped(sampling) == ("stop", "temperature", "top_p")
    options = ModelOptions(temperature=0.3, seed=1, extra={"frequency_penalty": 0.1, "user": "u"})
    sent = written(PROFILES["gemini"], options=options)
    (call,) = sent["messages"][2]["tool_calls"]
    assert call["extra_content"]["google"]["thought_signature"]
    assert call["function"] == {"name": "f", "arguments": '{"x": 1}'}
    assert not {"seed", "frequency_penalty"} & sent.keys()
    assert PROFILES["gemini"].dropped(options) == ("frequency_penalty", "seed")
    assert PROFILES["generic"].dropped(options) == ()
    choices = [PROFILES["ollama"].dropped(ModelOptions(tool_choice=name)) for name in ("auto", "none", "required")]
    assert choices == [(), (), ("tool_choice",)]
    assert "content" not in written(PROFILES["openai"])["messages"][2]
    basic = written(PROFILES["basic"])
    assert (basic["messages"][2]["content"], "stream_options" in basic) == ("", False)


@pytest.mark.parametrize(
    ("profile", "reasoning", "expected"),
    [
        (GENERIC, "hm", None),
        (THINKING, "hm", "hm"),
        (THINKING, None, None),
        (DEEPSEEK, "hm", "hm"),
        (DEEPSEEK, None, ""),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_reasoning_is_sent_back_beside_calls_where_the_provider_needs_it(
    profile: ProviderProfile, reasoning: str | None, expected: str | None
) -> None:
    thought = Message(Role.ASSISTANT, None, tool_calls=(CALL,), reasoning_content=reasoning)
    spoken = Message(Role.ASSISTANT, "Done.", reasoning_content="hm")
    sent = written(profile, [user("Go"), thought, tool_message(CALL, "ok"), spoken])["messages"]
    assert sent[1].get("reasoning_content") == expected
    assert "reasoning_content" not in sent[3]


def test_requests_that_repeat_earlier_ones_are_what_they_would_be_alone() -> None:
    other = ToolCall("call_2", FunctionCall("g", "{}"))
    grown = [*HISTORY, assistant("Then g", [other]), tool_message(other, "done")]
    tool: ToolSchema = {"type": "function", "function": {"name": "g", "description": "", "parameters": {}}}
    requests: list[tuple[Sequence[Message], Sequence[ToolSchema], ProviderProfile]] = [
        (HISTORY, [TOOL], GENERIC),
        (grown, [TOOL, tool], GENERIC),
        (grown, [tool], GENERIC),
        (grown, [], GENERIC),
        (grown[:2], [tool, TOOL], GENERIC),
        ([grown[0], user("Stop"), *grown[2:]], [TOOL], GENERIC),
        (grown, [TOOL], DEEPSEEK),
        (grown, [TOOL], GENERIC),
        ([], [TOOL], GENERIC),
        (grown, [TOOL], GENERIC),
    ]
    bodies = RequestBodies()
    for messages, tools, profile in requests:
        alone = RequestBodies().body("m", messages, tools, PLAIN, profile)
        assert bodies.body("m", messages, tools, PLAIN, profile) == alone
        wire = [written(profile, [message])["messages"][0] for message in messages]
        assert orjson.loads(alone)["messages"] == wire
    with pytest.raises(TypeError):
        bodies.body("m", [user("half a character: \ud83d")], [], PLAIN, GENERIC)
    assert bodies.body("m", grown, [TOOL], PLAIN, GENERIC) == RequestBodies().body("m", grown, [TOOL], PLAIN, GENERIC)
