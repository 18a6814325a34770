"""Answers of models that write calls into their text, made by rule from the parts in tests/unit/text_calls.toml."""

import json
import tomllib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from task.conversation.messages import Message, user
from task.llm.base import ChatModel, Delta, Finish, ModelOptions, TextDelta, ToolCallDelta, ToolSchema
from task.llm.text_calls import with_text_calls

PARTS = tomllib.loads((Path(__file__).parents[1] / "unit/text_calls.toml").read_text(encoding="utf-8"))
PROGRAM = 'rows = [{"a": "}"}, ["]"]]\nprint(f"""{len(rows)}\\n```""")\n'
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("calculator", {"expression": "25*47"}),
    ("web_search", {"query": 'größe "x" {y}', "num_results": 3}),
    ("execute_code", {"code": PROGRAM}),
)
Called = tuple[str, dict[str, Any]]


def _tool(name: str, *required: str, **optional: str) -> ToolSchema:
    kinds = {**dict.fromkeys(required, "string"), **optional}
    properties = {key: {"type": kind} for key, kind in kinds.items()}
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


TOOLS = (
    _tool("calculator", "expression"),
    _tool("web_search", "query", num_results="integer"),
    _tool("execute_code", "code"),
)


@dataclass(frozen=True, slots=True)
class WrittenAnswer:
    """What a model writes in a conversation, and what is to become of it."""

    text: str
    visible: str
    calls: tuple[Called, ...] = ()
    messages: tuple[Message, ...] = field(default=(user("Go on."),))


def answers() -> Iterator[WrittenAnswer]:
    """All answers of the corpus."""
    yield from _single_calls()
    yield from _groups()
    yield from (_plain(text.replace("UNKNOWN", "rm_rf")) for text in PARTS["answers"])
    yield from _quotations()


def _single_calls() -> Iterator[WrittenAnswer]:
    for notation in PARTS["notations"]:
        for number, around in enumerate(PARTS["around"]):
            call = CALLS[number % len(CALLS)]
            yield WrittenAnswer(
                around.replace("@CALL", written(notation, *call)), around.partition("@CALL")[0], (call,)
            )


def _groups() -> Iterator[WrittenAnswer]:
    for notation in PARTS["notations"]:
        for group in PARTS["groups"]:
            text, kept = group, 3 if "results" not in group else 2
            for call in CALLS:
                text = text.replace("@CALL", written(notation, *call), 1)
            yield WrittenAnswer(text, "", CALLS[: min(kept, group.count("@CALL"))])


def _plain(text: str, *messages: Message) -> WrittenAnswer:
    return WrittenAnswer(text, text, (), messages or (user("Go on."),))


def _quotations() -> Iterator[WrittenAnswer]:
    for name, arguments in CALLS:
        compact = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        indented = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False, indent=2)
        for document in (compact, indented, f'{{"page": {json.dumps(compact, ensure_ascii=False)}}}'):
            for quotation in PARTS["quotations"]:
                yield _plain(quotation.replace("@CALL", indented), user(f"What is in this file?\n{document}"))


def written(notation: str, name: str, arguments: dict[str, Any]) -> str:
    """The call in a notation of the corpus."""
    text = json.dumps(arguments, ensure_ascii=False)
    return (
        notation.replace("NAME", name)
        .replace("QUOTED", json.dumps(text, ensure_ascii=False))
        .replace("ARGUMENTS", text)
    )


@dataclass(frozen=True, slots=True)
class WritingModel:
    """Another model that writes its calls into its text, behind what recognises them there."""

    model: ChatModel
    notation: str = PARTS["notations"][0]

    @property
    def name(self) -> str:
        return self.model.name

    def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        return with_text_calls(self._written(messages, tools, options), messages, tools, options)

    async def _written(
        self, messages: Sequence[Message], tools: Sequence[ToolSchema], options: ModelOptions
    ) -> AsyncGenerator[Delta]:
        async for delta in self.model.stream(messages, tools, options):
            if isinstance(delta, ToolCallDelta):
                arguments = (
                    delta.arguments if isinstance(delta.arguments, dict) else json.loads(delta.arguments or "{}")
                )
                yield TextDelta(written(self.notation, str(delta.name), arguments) + "\n")
            else:
                yield Finish("stop") if isinstance(delta, Finish) else delta
