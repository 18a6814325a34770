"""Conversations are data: a YAML file gives replies to serve and results to expect."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from task.llm.base import TextDelta, ToolCallDelta
from tests.support.scripts import load_conversations

CONVERSATION = """
- name: two turns
  turns:
    - user: What is 25*47?
      attachments: [{title: report.csv, type: text/csv}]
      model:
        - {text: Let me see., call: [{tool: calculator, arguments: {expression: 25*47}}, {tool: clock}]}
        - {text: [11, 75]}
      tool_calls: [{tool: calculator, arguments: {expression: 25*47}}, {tool: clock}]
      answer: "1175"
    - user: Thanks
      model: [{text: $5 please}]
      answer: $5 please
"""


def test_a_file_gives_the_replies_of_all_turns_and_what_to_expect(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(CONVERSATION.replace("[11, 75]", '["11", "75"]'), encoding="utf-8")
    (conversation,) = load_conversations(tmp_path)
    assert conversation == load_conversations(tmp_path / "one.yaml")[0]
    first, second, third = conversation.replies()
    assert first.events == (
        TextDelta("Let me see."),
        ToolCallDelta(0, None, "calculator", {"expression": "25*47"}),
        ToolCallDelta(1, None, "clock", {}),
    )
    assert second.events == (TextDelta("11"), TextDelta("75"))
    assert third.events == (TextDelta("$5 please"),)
    assert [turn.answer for turn in conversation.turns] == ["1175", "$5 please"]
    assert [call.tool for call in conversation.turns[0].tool_calls] == ["calculator", "clock"]


def test_a_misspelt_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.yaml"
    path.write_text("- {name: x, turns: [{user: a, modle: [], answer: b}]}", encoding="utf-8")
    with pytest.raises(ValidationError, match="modle"):
        load_conversations(path)
