"""The documented place of the design's message, which is in `task.reference`."""

from task.reference.conversation_input import ConversationInput as ConversationInput
