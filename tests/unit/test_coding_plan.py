"""Plans: read from whatever a planner wraps them in, and refused with what is wrong in them."""

from __future__ import annotations

import json

import pytest

from task.coding.planner import Plan, parse_plan
from task.coding.settings import backend_and_model, compact_json
from task.conversation.messages import FunctionCall, Message, Role, ToolCall

DATA = {"plan": ["Read it.", "Write it."], "coder_prompt": "Do {it}.", "tests": ["pytest -q"]}
TEXT = json.dumps(DATA)
EXPECTED = Plan(["Read it.", "Write it."], "Do {it}.", ["pytest -q"])


@pytest.mark.fault("coding: a planner that writes prose, fences, template tokens or a plan as text")
@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"```json\n{TEXT}\n```",
        f"{TEXT}<|end|><|return|>",
        f"Here is the plan:\n\n{TEXT}\n\nGood luck {{with}} it!",
        f'The shape is {{"example": 1}}, and so:\n{TEXT}',
        f"{{ no JSON }} {{{{ {TEXT}",
        json.dumps({**DATA, "plan": "1. Read it.\n2. Write it.\n"}),
        json.dumps({**DATA, "plan": ["- Read it.", " (2) Write it.", ""]}),
        json.dumps({**DATA, "tests": "pytest -q"}),
        json.dumps({**DATA, "why": "because"}),
    ],
)
def test_a_plan_is_found_in_what_planners_write(text: str) -> None:
    assert parse_plan(text) == EXPECTED


@pytest.mark.parametrize("tests", [{}, {"tests": None}, {"tests": []}])
def test_a_plan_may_have_no_tests(tests: dict[str, None]) -> None:
    plan = parse_plan(json.dumps({"plan": ["Do it."], "coder_prompt": "Do it.", **tests}))
    assert plan.tests == []


@pytest.mark.fault("coding: a plan that is cut, empty, of the wrong types, or nested 100,000 deep")
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("I would begin by reading the code.", "there is no JSON object"),
        ("", "there is no JSON object"),
        (TEXT[:-20], "there is no JSON object"),
        ("[1, 2]", "there is no JSON object"),
        ('{"a":' * 100_000, "there is no JSON object"),
        (json.dumps({"plan": ["Do it."]}), "coder_prompt: Field required"),
        (json.dumps({**DATA, "coder_prompt": ""}), "coder_prompt: String should have at least 1 character"),
        (json.dumps({**DATA, "plan": []}), "plan: it has no steps"),
        (json.dumps({**DATA, "plan": "  \n"}), "plan: it has no steps"),
        (json.dumps({**DATA, "plan": {"first": "Read"}}), "plan: Input should be a valid list"),
        (json.dumps({**DATA, "plan": [1, 2]}), "plan.0: Input should be a valid string"),
        (json.dumps({**DATA, "coder_prompt": ["Do it."]}), "coder_prompt: Input should be a valid string"),
    ],
)
def test_what_is_no_plan_is_refused_with_the_reason(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        parse_plan(text)


@pytest.mark.fault("coding: a planner that calls a tool")
def test_a_planner_that_calls_a_tool_gives_no_plan() -> None:
    calls = (ToolCall("call_1", FunctionCall("fs_read", "{}")),)
    with pytest.raises(ValueError, match="called a tool"):
        parse_plan(Message(Role.ASSISTANT, TEXT, calls))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpt-oss:20b", ("ollama", "gpt-oss:20b")),
        ("qwen2.5-coder", ("ollama", "qwen2.5-coder")),
        ("ollama:gpt-oss:20b", ("ollama", "gpt-oss:20b")),
        ("openai:gpt-4o", ("openai", "gpt-4o")),
        ("dial:my-deployment", ("dial", "my-deployment")),
        ("OpenAI:gpt-4o", ("ollama", "OpenAI:gpt-4o")),
        ("openai:", ("ollama", "openai:")),
        (":7b", ("ollama", ":7b")),
    ],
)
def test_only_a_row_of_the_table_of_backends_before_the_first_colon_is_a_backend(
    text: str, expected: tuple[str, str]
) -> None:
    assert backend_and_model(text) == expected


def test_compact_json_has_no_spaces_and_keeps_every_character() -> None:
    assert compact_json({"a": [1, 2], "ü": "Привет"}) == '{"a":[1,2],"ü":"Привет"}'
