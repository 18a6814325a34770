"""What tells a conversation from every other one of its owner."""

from __future__ import annotations

import pytest

from task.api.platform.kept_turns import conversation_key
from task.conversation.messages import FunctionCall, Message, Role, ToolCall


def key(arguments: str) -> str:
    call = ToolCall("call_0", FunctionCall("lookup", arguments))
    return conversation_key("ann", None, [Message(Role.ASSISTANT, None, tool_calls=(call,))])


def test_arguments_are_the_same_however_they_are_written() -> None:
    assert key('{"a": 1, "b": [2]}') == key('{"b":[2],"a":1}') != key('{"b":[2],"a":"1"}')


@pytest.mark.parametrize("bad", ["[" * 100_000, "[" * 900 + "]" * 900, "9" * 5_000, '{"a": NaN}', '"\ud800"', ""])
def test_arguments_that_are_no_json_or_nested_too_deep_are_compared_as_they_are(bad: str) -> None:
    assert key(bad) == key(bad) != key(f"{bad}\0")
