"""An answer that is to be JSON: what the model says before it calls a tool of ours is no part of it."""

from __future__ import annotations

from collections.abc import Collection

from task.conversation.messages import Message
from task.conversation.sinks import ChoiceSink
from task.llm.base import ModelOptions, Usage
from task.loop import LoopObserver


def wants_json(options: ModelOptions) -> bool:
    """Whether the request gives a format that the answer must be in."""
    wanted = options.extra.get("response_format") or {}
    return wanted.get("type", "text") != "text"


class JsonAnswer:
    """Shows text to `choice` as soon as it looks like an object, any other when its step is known to be the last.

    It hears the steps as the loop's observer and tells them to `observer`; a step that ends in calls of `others`, the
    caller's tools, is an answer too. Call `close` at the end.
    """

    def __init__(self, choice: ChoiceSink, observer: LoopObserver, others: Collection[str]) -> None:
        self._choice, self._observer, self._others = choice, observer, others
        self._held = ""
        self._showing = self._spoke = False
        self.append_reasoning_content, self.add_attachment = choice.append_reasoning_content, choice.add_attachment
        self.create_stage, self.set_state = choice.create_stage, choice.set_state
        self.decided, self.call_ended = observer.decided, observer.call_ended
        self.limit_hit, self.run_ended = observer.limit_hit, observer.run_ended

    def append_content(self, content: str) -> None:
        if self._showing:
            self._choice.append_content(content)
            return
        self._held += content
        if self._held.lstrip().startswith("{"):
            self._showing = True
            self._show()

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        ours = bool(message.tool_calls) and not any(call.name in self._others for call in message.tool_calls)
        self._held = "" if ours else self._held
        self._show()
        self._showing = False
        self._observer.model_answered(message, usage, seconds)

    def close(self) -> None:
        """Show what was kept back."""
        self._show()

    def _show(self) -> None:
        text, self._held = self._held if self._spoke else self._held.lstrip("\n"), ""
        if text:
            self._spoke = True
            self._choice.append_content(text)
