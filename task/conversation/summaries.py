"""Summarise in a few lines what was left out of a conversation."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from task.conversation.messages import Message, Role, assistant
from task.conversation.pruning import BYTES_PER_TOKEN, text_tokens

logger = logging.getLogger(__name__)

HEADER = "[Summary of earlier messages, which were left out to fit the model's context]"
EARLIER = "- (more came before)"
_LINE = 240

Summariser = Callable[[Sequence[Message], int], str]  # messages and tokens -> their summary


def summary(dropped: Sequence[Message], tokens: int, summarise: Summariser | None = None) -> Message:
    """A summary of what was dropped, written by `summarise` or, if that is missing or fails, by `digest`.

    It is an assistant message: its content may come from a web page, and must not have the authority of user or system.
    """
    text = ""
    if summarise is not None:
        try:
            text = summarise(dropped, tokens).strip()
        except Exception:  # whatever a summary model does, the conversation continues
            logger.warning("the summary of the conversation failed", exc_info=True)
    text = text or digest(dropped, tokens)
    if text_tokens(text) > tokens:
        text = text.encode()[: int(tokens * BYTES_PER_TOKEN)].decode(errors="ignore")
    return assistant(f"{HEADER}\n{text}")


def digest(dropped: Sequence[Message], tokens: int) -> str:
    """What the user asked, what was called and how the answers began, line by line; the newest lines if not all fit.

    Deterministic; results of tools are not repeated.
    """
    lines = list(_lines(dropped))
    left = tokens - text_tokens(EARLIER)
    for place in range(len(lines) - 1, -1, -1):
        left -= text_tokens(lines[place]) + 1
        if left < 0:
            return "\n".join([EARLIER, *lines[place + 1 :]])
    return "\n".join(lines)


def _lines(dropped: Sequence[Message]) -> Iterator[str]:
    called: Counter[str] = Counter()
    for message in dropped:
        if message.role is Role.USER and called:
            yield _calls(called)
            called.clear()
        called.update(call.name for call in message.tool_calls)
        text = message.text()
        if message.role is Role.ASSISTANT and text.startswith(HEADER):
            yield from text.splitlines()[1:]
        elif message.role is Role.USER:
            yield f"- The user: {_begin(text)}"
        elif message.role is Role.ASSISTANT and text.strip():
            yield f"- The assistant: {_begin(text)}"
    if called:
        yield _calls(called)


def _calls(called: Counter[str]) -> str:
    return "- Tools called: " + ", ".join(f"{name} ×{times}" if times > 1 else name for name, times in called.items())


def _begin(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LINE else f"{line[: _LINE - 2]} …"
