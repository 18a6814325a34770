"""The documented place of the design's message, which is in `task.reference`."""

from task.reference.conversation_input import ConversationInput, inputs_of, messages_of, tools_of

__all__ = ["ConversationInput", "inputs_of", "messages_of", "tools_of"]
