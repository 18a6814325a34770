"""What a run leaves in its session: its messages, the assistant's words as they were shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

from task.conversation.history import repaired
from task.conversation.links import Suspicion
from task.conversation.messages import Message, Role
from task.conversation.sanitizer import Defanger
from task.permissions.taint import ContextView

View = Callable[[Sequence[Message]], ContextView]


def suspicion(view: Callable[[], ContextView], hosts: Sequence[str]) -> Suspicion:
    """Which addresses may be shown as they are, where `view` tells the conversation so far."""
    return Suspicion(lambda url: view().knows(url), lambda: view().tainted, hosts)


def broken_off(added: Sequence[Message]) -> tuple[Message, ...]:
    """What a run that was stopped or failed has added, each of its calls answered.

    Results in front belong to calls of the run that was suspended before it.
    """
    resumed = list(takewhile(lambda message: message.role is Role.TOOL, added))
    return (*resumed, *repaired(added[len(resumed) :]))


def as_shown(
    before: Sequence[Message], added: Sequence[Message], view: View, hosts: Sequence[str]
) -> tuple[Message, ...]:
    """The run's messages; addresses that the model made up are plain text, judged by what stood before each message.

    The stream was judged by the same, but as one text: here each message is harmless also when it stands alone.
    """
    whole = [*before, *added]
    return tuple(
        _shown(message, suspicion(lambda place=place: view(whole[:place]), hosts))
        for place, message in enumerate(added, len(before))
    )


def _shown(message: Message, suspects: Suspicion) -> Message:
    if message.role is not Role.ASSISTANT:
        return message
    thoughts = message.reasoning_content
    return replace(
        message,
        content=_harmless(message.content, suspects) if isinstance(message.content, str) else message.content,
        reasoning_content=_harmless(thoughts, suspects) if thoughts else thoughts,
    )


def _harmless(text: str, suspects: Suspicion) -> str:
    return Defanger(suspects).feed(text, last=True)
