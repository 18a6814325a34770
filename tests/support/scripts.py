"""Scripted conversations as data: what the user says, what the model answers, and what must come out.

A YAML file holds a list of conversations:

    - name: a calculation
      turns:
        - user: What is 25 * 47?
          attachments: [{title: report.csv, type: text/csv, file: report.csv}]     # optional, handed through as it is
          model:                                    # one item per model request
            - call: [{tool: calculator, arguments: {expression: 25*47}}]
            - text: ["11", "75"]
              breaks: the server is gone            # optional: the provider's error that interrupts the answer
          tool_calls: [{tool: calculator, arguments: {expression: 25*47}}]         # expected, in order
          answer: "1175"                                                           # expected
          waits: [write_note]                  # optional: the tools whose calls the user is then asked about

`tests/contract/matrix/projection.py` says what else a turn of its conversations has.
"""

from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter

from task.errors import ProviderError
from task.llm.scripted import Reply, says, wants


class Call(BaseModel):
    """One call; `$name` in its arguments stands for a value that the row fills in."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    arguments: dict[str, Any] = {}


class ScriptedAnswer(BaseModel):
    """Text, whole or in pieces, then calls.

    `note` is what the request for it holds after the conversation; a `last` one offers no tools.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    text: str | list[str] = ""
    call: list[Call] = []
    breaks: str | None = None
    note: str | None = None
    last: bool = False

    def reply(self, values: Mapping[str, str] | None = None) -> Reply:
        def fill(value: Any) -> Any:
            return Template(value).safe_substitute(values) if isinstance(value, str) and values is not None else value

        pieces = [self.text] if isinstance(self.text, str) else self.text
        reply = says(*(fill(piece) for piece in pieces if piece))
        for call in self.call:
            reply &= wants(call.tool, **{name: fill(value) for name, value in call.arguments.items()})
        return reply & Reply((ProviderError(self.breaks, status_code=500),)) if self.breaks is not None else reply


class Turn(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    user: str
    attachments: list[dict[str, Any]] = []
    sent: str | None = None  # what the model is sent in place of `user`; None: the same
    model: list[ScriptedAnswer]
    results: list[str | None] = []  # of the calls in `tool_calls`; None: it waits
    stages: list[str] = []  # what DIAL Chat shows of the calls
    closes: str | None = None  # the result of waiting calls, if `user` is not a decision about them
    unstreamed: str | None = None  # `answer` of a backend that does not stream; None: the same
    tool_calls: list[Call] = []
    answer: str
    waits: list[str] = []


class Made(BaseModel):
    """An application of the agent: its properties, and what the model gets of them behind the prompt and as tools.

    `signs_in`: the user signs in to its toolset `tickets` when DIAL Chat is asked for it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    properties: dict[str, Any]
    system: str
    tools: list[str]
    signs_in: bool = False


class Conversation(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    application: Made | None = None  # that it is held with; None: with the agent itself
    turns: list[Turn]

    def replies(self) -> list[Reply]:
        """Every answer of the model over all turns; what `openai_upstream` and `ScriptedModel` take."""
        return [data.reply() for turn in self.turns for data in turn.model]


def load_conversations(path: Path) -> list[Conversation]:
    """The conversations of one YAML file, or of all `*.yaml` files of a folder in name order."""
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    listed = TypeAdapter(list[Conversation])
    return [item for file in files for item in listed.validate_python(yaml.safe_load(file.read_text("utf-8")))]
