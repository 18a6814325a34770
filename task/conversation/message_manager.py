"""MessageManager, the framework's conversation history: that of the console, and for programs that use it."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from task.conversation.messages import (
    TOOL_RESULT,
    Message,
    Role,
    ToolCall,
    assistant,
    message_from,
    repaired,
    system,
    user,
)
from task.conversation.pruning import Budget, Summariser, cut, fits, marked, shortened, summary
from task.errors import ConfigError, FrameworkError

_AFTER_A_SUMMARY = 0.5  # of the limits: a summary costs a model request, so the next one should be far away


class HistoryConfig(BaseModel):
    """The documented configuration, extended by a budget of tokens and the size of a summary."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_length: int = Field(default=100, ge=1)
    pruning_strategy: Literal["remove_oldest", "summarize"] = "remove_oldest"
    prioritize_system_messages: bool = True
    max_tokens: int | None = Field(default=None, ge=1)
    summary_tokens: int = Field(default=800, ge=50)
    default_initial_messages: tuple[dict[str, object], ...] = ()


class MessageManager:
    """Conversation history with pruning. Source: framework reference, Message Manager.

    The history is pruned when it exceeds its limits. `clock` returns Unix time, `summarise` writes the summaries of the
    strategy `summarize`.

    Raises:
        ConfigError: a key is unknown or a value is out of range.
    """

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        clock: Callable[[], float] = time.time,
        summarise: Summariser | None = None,
    ) -> None:
        self.config = _checked(config or {})
        self._clock, self._summarise = clock, summarise
        self._entries: list[tuple[Message, float]] = []  # with the Unix time at which each was added
        self.extend([message_from(item) for item in self.config.default_initial_messages])

    def __len__(self) -> int:
        return len(self._entries)

    def add_system_message(self, content: str) -> None:
        self.extend([system(content)])

    def add_user_message(self, content: str) -> None:
        self.extend([user(content)])

    def add_assistant_message(self, content: str, tool_calls: Sequence[ToolCall] = ()) -> None:
        self.extend([assistant(content or None if tool_calls else content, tool_calls)])

    def add_tool_result_message(self, tool_name: str, content: object, tool_call_id: str) -> None:
        """Add a tool's result; what is not text is kept as JSON, and an empty id is replaced by a unique one."""
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, default=str)
        own_id = tool_call_id or f"call_{len(self._entries)}"
        self.extend([Message(Role.TOOL, text, tool_call_id=own_id, name=tool_name)])

    def extend(self, messages: Sequence[Message]) -> None:
        """Add the messages of a run, in order."""
        now = self._clock()
        self._entries += [(message, now) for message in messages]
        self.prune_history()

    def conversation(self) -> list[Message]:
        """The history, valid for a model: every result has its call, every call its result.

        A result that was added without its call becomes a sentence of the assistant.
        """
        result: list[Message] = []
        called: set[str | None] = set()
        for message, _ in self._entries:
            called |= {call.id for call in message.tool_calls}
            if message.role is Role.TOOL and message.tool_call_id not in called:
                message = replace(assistant(f"Result of {message.name}:\n{message.text()}"), unsourced=True)
            result.append(message)
        return repaired(result)

    def get_messages(
        self, include_roles: list[str] | None = None, exclude_roles: list[str] | None = None, for_llm: bool = False
    ) -> list[dict[str, Any]]:
        """The messages in the documented form, or with `for_llm` in OpenAI's; roles by their name in either.

        The messages for a model stay valid: without the results there are no calls, without the calls no results.
        """

        def wanted(message: Message) -> bool:
            names = {message.role.value, _role(message)}
            return (include_roles is None or bool(names & set(include_roles))) and not names & set(exclude_roles or ())

        if not for_llm:
            return [_documented(*entry) for entry in self._entries if wanted(entry[0])]
        chosen = [message for message in self.conversation() if wanted(message)]
        if not any(message.role is Role.TOOL for message in chosen):
            chosen = [replace(message, tool_calls=()) for message in chosen]
        return [message.as_dict() for message in repaired(chosen)]

    def prune_history(self, preserve_system: bool = True) -> None:
        """Shorten the history if it exceeds its limits; see `task.conversation.pruning`."""
        messages = [message for message, _ in self._entries]
        if fits(messages, self._budget):
            return
        times = {id(message): added for message, added in self._entries}
        summarises, room = self.config.pruning_strategy == "summarize", self._budget
        if summarises:
            room = room.share(_AFTER_A_SUMMARY, 1, self.config.summary_tokens)
        keep_system = preserve_system and self.config.prioritize_system_messages
        part = cut(messages, room, keep_system=keep_system)
        kept = list(part.kept)
        if summarises and part.dropped:
            kept = part.with_note(summary(part.dropped, self.config.summary_tokens, self._summarise))
        brief = marked(shortened(kept, self._budget), part.dropped)
        now = self._clock()
        self._entries = [(new, times.get(id(old), now)) for old, new in zip(kept, brief, strict=True)]

    def clear_history(self, preserve_system: bool = True) -> None:
        self._entries = [entry for entry in self._entries if preserve_system and entry[0].role is Role.SYSTEM]

    def serialize(self) -> dict[str, Any]:
        """The history as JSON data."""
        return {
            # Beside what is documented: files, and the reasoning that some providers want back beside the calls.
            "messages": [message.as_stored() | _documented(message, added) for message, added in self._entries],
            "max_history_length": self.config.max_length,
            "pruning_strategy": self.config.pruning_strategy,
            "prioritize_system_messages": self.config.prioritize_system_messages,
        }

    def deserialize(self, data: Mapping[str, Any]) -> None:
        """Replace the history and its limits; a limit that the data does not name is kept.

        Raises:
            FrameworkError: the data is not a serialised history; the manager is unchanged.
        """
        names = {"max_history_length": "max_length"}
        limits = {names.get(key, key): value for key, value in data.items() if key != "messages"}
        try:
            entries = [(message_from(item), float(item.get("timestamp", 0.0))) for item in data["messages"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FrameworkError(f"This is not a saved history: {type(error).__name__} in its messages.") from error
        self.config = _checked({**self.config.model_dump(), **limits})
        self._entries = entries

    @property
    def _budget(self) -> Budget:
        return Budget(self.config.max_length, self.config.max_tokens)


def _checked(config: Mapping[str, object]) -> HistoryConfig:
    try:
        return HistoryConfig.model_validate(config)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        key, known = ".".join(map(str, fault["loc"])), ", ".join(HistoryConfig.model_fields)
        raise ConfigError(f"message_history.{key}: {fault['msg']}. Known keys are: {known}.") from error


def _role(message: Message) -> str:
    return TOOL_RESULT if message.role is Role.TOOL else message.role.value


def _documented(message: Message, added: float) -> dict[str, object]:
    shown: dict[str, object] = {"role": _role(message), "content": message.content or "", "timestamp": added}
    if message.role is Role.TOOL:
        shown |= {"tool_name": message.name, "tool_call_id": message.tool_call_id}
    if message.tool_calls:
        shown["tool_calls"] = [call.as_dict() for call in message.tool_calls]
    return shown
