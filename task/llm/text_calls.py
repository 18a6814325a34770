"""Turn the calls that a model wrote into its text back into calls, while the text streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from task.conversation.messages import Message
from task.llm.base import Delta, ModelOptions, ToolSchema


def with_text_calls(
    deltas: AsyncGenerator[Delta],
    messages: Sequence[Message],
    tools: Sequence[ToolSchema],
    options: ModelOptions,
    model: str = "",
) -> AsyncGenerator[Delta]:
    """The deltas of a request for these messages and tools, with calls in place of the text that contains them."""
    return deltas
