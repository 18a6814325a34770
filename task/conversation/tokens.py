"""Estimate what a conversation costs in tokens, without the model's own tokenizer."""

from __future__ import annotations

from collections.abc import Callable

from task.conversation.messages import Message

# Common tokenizers make one token of about four bytes of prose. A fifth fewer leaves room for code, tables and scripts
# that they know less well: a conversation that is thought too long is shortened, one thought too short is refused.
BYTES_PER_TOKEN = 3.2
MESSAGE_TOKENS = 4  # role and separators
CALL_TOKENS = 8
PICTURE_TOKENS = 1600  # what providers charge for a picture of a screen's size; its data is no text

TokenCounter = Callable[[Message], int]


def text_tokens(text: str) -> int:
    """Tokens of a text: its UTF-8 bytes by 3.2, rounded up."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -int(-size // BYTES_PER_TOKEN)


def message_tokens(message: Message) -> int:
    """Tokens of a message with its calls and pictures."""
    total = MESSAGE_TOKENS
    if isinstance(message.content, str):
        total += text_tokens(message.content)
    else:
        for part in message.content or ():
            total += text_tokens(str(part.get("text", ""))) if part.get("type") == "text" else PICTURE_TOKENS
    for call in message.tool_calls:
        total += CALL_TOKENS + text_tokens(call.function.name) + text_tokens(call.function.arguments)
    return total + text_tokens(message.reasoning_content) if message.reasoning_content else total
