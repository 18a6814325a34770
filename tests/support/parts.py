"""A model's answer as plain parts, which every model peer in a process of its own can be sent."""

from typing import Any

from task.errors import ProviderError
from task.llm.base import Finish, ReasoningDelta, TextDelta, ToolCallDelta
from task.llm.scripted import Pause, Reply


def parts_of(reply: Reply) -> dict[str, Any]:
    """The parts of a reply in its order."""
    return {"parts": [part for event in reply.events if (part := _part(event)) is not None]}


def reply_of(parts: list[dict[str, Any]]) -> Reply:
    """The reply that these parts are."""
    reply = Reply(())
    for part in parts:
        reply &= Reply((_event(part),))
    return reply


def _part(event: object) -> dict[str, Any] | None:
    match event:
        case TextDelta(text):
            return {"text": text}
        case ReasoningDelta(text):
            return {"thinking": text}
        case ToolCallDelta(name=name, arguments=arguments):
            return {"call": {"name": name, "arguments": arguments}}
        case Pause(seconds):
            return {"pause": seconds}
        case ProviderError():
            return {"error": str(event)}
        case Finish():
            return None
        case _:
            raise TypeError(f"no peer says anything like {event}")


def _event(part: dict[str, Any]) -> Any:
    match part:
        case {"text": text}:
            return TextDelta(text)
        case {"thinking": text}:
            return ReasoningDelta(text)
        case {"call": call}:
            return ToolCallDelta(0, None, call["name"], call["arguments"])
        case {"pause": seconds}:
            return Pause(seconds)
        case {"error": text}:
            return ProviderError(text)
        case _:
            raise TypeError(f"no reply has a part like {part}")
