"""A choice in memory: records what an answer would show, with the rules of the DIAL SDK's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aidial_sdk.chat_completion.chunks import BaseChunk

from task.conversation.messages import Attachment
from task.tools.models import Caller


@dataclass
class RecordedStage:
    name: str
    parent: RecordedStage | None = None
    content: str = ""
    status: str | None = None
    attachments: list[Attachment] = field(default_factory=list[Attachment])
    choice: RecordingChoice | None = None
    opened: bool = False

    def open(self) -> None:
        assert not self.opened, "a stage opens once"
        self.opened = True

    def close(self, status: Any = "completed") -> None:
        assert self.opened, "a stage closes after it was opened"
        assert self.status is None, "a stage closes once"
        self.status = str(getattr(status, "value", status))

    def append_name(self, name: str) -> None:
        self._writable()
        self.name += name

    def append_content(self, content: str) -> None:
        self._writable()
        self.content += content

    def add_attachment(self, **fields: str | None) -> None:
        self._writable()
        self.attachments.append(Attachment(**fields))

    def create_stage(self, name: str | None = None) -> RecordedStage:
        assert self.choice is not None
        return self.choice.new_stage(name, parent=self)

    def _writable(self) -> None:
        assert self.opened, "only an open stage can be written"
        assert self.status is None, "only an open stage can be written"


@dataclass
class RecordingChoice:
    content: str = ""
    reasoning: str = ""
    stages: list[RecordedStage] = field(default_factory=list[RecordedStage])
    attachments: list[Attachment] = field(default_factory=list[Attachment])
    state: dict[str, Any] | None = None
    form_schema: dict[str, Any] | None = None
    usage: tuple[int, int] | None = None
    annotations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def send_chunk(self, chunk: BaseChunk) -> None:
        """Take a chunk that the SDK has no method for."""
        [choice] = chunk.to_dict()["choices"]
        self.annotations += choice["delta"]["custom_fields"]["annotations"]

    def append_content(self, content: str) -> None:
        self.content += content

    def append_reasoning_content(self, content: str) -> None:
        self.reasoning += content

    def add_attachment(self, **fields: str | None) -> None:
        self.attachments.append(Attachment(**fields))

    def create_stage(self, name: str | None = None) -> RecordedStage:
        return self.new_stage(name, parent=None)

    def new_stage(self, name: str | None, parent: RecordedStage | None) -> RecordedStage:
        stage = RecordedStage(name or "", parent, choice=self)
        self.stages.append(stage)
        return stage

    def set_state(self, state: dict[str, Any]) -> None:
        assert self.state is None, "the state is set once"
        self.state = state

    def set_form_schema(self, form_schema: dict[str, Any]) -> None:
        assert self.form_schema is None, "the form is set once"
        self.form_schema = form_schema


async def _nobody() -> str:
    return "tester"


CALLER = Caller("key", _nobody, "conversation-1")
