"""The message of the design of tool calling over Dapr: one that may carry the tools it offers."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

from task.conversation.messages import Message, Role, message_from
from task.llm.base import ToolSchema


@dataclass
class ConversationInput:
    """One message of a conversation. Source: the design, "Proposed Extended ConversationInput".

    Without a role it is the user's. `tools` are in OpenAI's format. `tool_calls` are the calls of an assistant's
    message: the design has no place for them, and a result must follow the call it belongs to.
    """

    content: str | None
    role: str | None = None
    scrub_pii: bool | None = None
    tools: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    tool_calls: Sequence[Mapping[str, Any]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The message as the design writes it in JSON."""
        filled = {name: value for name, value in vars(self).items() if value is not None}
        return {"role": str(Role.USER), "content": None} | filled

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The message from the design's JSON; fields that the design does not have are left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{"content": None} | {name: value for name, value in data.items() if name in known})

    def message(self) -> Message:
        """The message without its tools.

        Raises:
            ValueError: its role is unknown, or it is a result that does not name its call.
        """
        try:
            return message_from(self.as_dict())
        except (KeyError, TypeError) as error:
            raise ValueError(f"A message of the role {self.role!r} is not complete: {error}.") from error


def tools_of(inputs: Iterable[ConversationInput]) -> list[ToolSchema]:
    """The tools that the inputs carry together; of two with one name the later one."""
    return list({tool["function"]["name"]: tool for each in inputs for tool in each.tools or ()}.values())
