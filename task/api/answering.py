"""Answer one request of the HTTP front door: the agent's loop with its tools, its gate and the caller's own tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from task.api.client_tools import ChoosingModel, ClientTool
from task.api.edge.failures import Failure, failure_of
from task.api.engine import Engine
from task.api.json_answers import JsonAnswer, wants_json
from task.api.pictures import as_seen
from task.api.platform.choice import RunChoice
from task.api.platform.pausing import Pause, Permits
from task.api.platform.run_request import RunRequest
from task.api.shown import as_shown, broken_off, suspicion
from task.api.web_search import with_web_search
from task.conversation.messages import Message, Role, ToolCall, system
from task.conversation.sanitized_choice import DefangedChoice
from task.errors import InvalidRequest, ProviderError
from task.llm.base import ModelOptions, Usage
from task.loop import CONTENT_FILTER, EMPTY_ANSWER, Limits, LoopObserver, RunOutcome, ToolLoop
from task.store.records import Run, RunStatus
from task.store.store import Store
from task.tools.base import BaseTool
from task.tools.models import Caller
from task.tools.toolbox import Toolbox, named


@dataclass(slots=True)
class Result:
    """How a run ended. `calls` are those the caller is to make; `question` is put to a person about other calls.

    `session_id` is the session that a run without one was given, so that it can be gone on with. `cut` tells that the
    answer ended at the model's limit of tokens.
    """

    status: RunStatus
    added: tuple[Message, ...] = ()
    usage: Usage = field(default_factory=Usage)
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    question: str = ""
    limit: str | None = None
    error: BaseException | None = None
    failure: Failure | None = None
    session_id: str | None = None
    cut: bool = False

    @property
    def finish_reason(self) -> str | None:
        """The end in OpenAI's words, where a filtered or an empty answer is an answer; None: it is told as an error."""
        if self.error is not None:
            return _finish_reason(self.error)
        if self.calls:
            return "tool_calls"
        return "length" if self.cut or self.status == "cancelled" else "stop"  # OpenAI has no word for a stopped one

    def with_error(self, error: BaseException) -> Result:
        return replace(self, error=error, failure=self.failure or failure_of(error))


class Answering:
    """Builds the loop of each run."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def answer(
        self, ask: RunRequest, run: Run, choice: RunChoice, observer: LoopObserver, store: Store
    ) -> Result:
        """Answer into `choice`; every failure is a result. When it is cancelled the result is that as well."""
        messages: list[Message] = []
        base, tools, permits = 0, list[BaseTool](), None

        def left(added: Sequence[Message]) -> tuple[Message, ...]:
            hosts = self._engine.connection().link_hosts
            shown = as_shown(messages[:base], added, Toolbox(tools).view, hosts)
            return permits.noted(shown) if permits is not None else shown

        try:
            permits = await Permits.of(ask, run, store, self._engine.connection().permissions)
            tools, note = await self._tools(ask, choice)
            _check_choice(ask.options.choice, tools)
            told = await self._told(ask, (*permits.history(ask.history), *ask.new))
            messages = [*await self._prompt(ask, note), *told]
            base = len(messages)
            outcome = await self._run(ask, messages, tools, permits, choice, observer)
            pause = Pause(permits, outcome.pending, {tool["name"] for tool in ask.options.tools})
            added = left(outcome.added)
            question, session_id = await pause.asked(ask, run, named(tools), added, choice)
            await permits.keep()
        except asyncio.CancelledError:
            choice.flush()
            return Result("cancelled", left(broken_off(messages[base:])), text=choice.text)
        except Exception as error:
            choice.flush()
            return Result("failed", left(broken_off(messages[base:])), text=choice.text, error=error)
        choice.flush()
        return Result(
            outcome.status, added, outcome.usage, choice.text, pause.calls, question,
            outcome.limit, outcome.error, session_id=session_id, cut=outcome.cut,
        )  # fmt: skip

    async def _tools(self, ask: RunRequest, choice: RunChoice) -> tuple[list[BaseTool], str]:
        """Our tools and the caller's, whose names come first; what is missing, told to the model."""
        theirs = [ClientTool(tool) for tool in ask.options.tools]
        if ask.options.choice == "none" and not ask.answered:  # what was approved runs all the same
            return [], ""
        own = await self._engine.tools()
        caller = self._caller(ask, "")
        found = await self._engine.connection().mcp.discover(caller, named(own))
        found.show(choice)
        taken = {tool.name for tool in theirs}
        ours = [tool for tool in with_web_search([*own, *found.tools]) if tool.name not in taken]
        return [*ours, *theirs], found.note()

    async def _told(self, ask: RunRequest, messages: Sequence[Message]) -> list[Message]:
        seen = await as_seen(messages, self._engine.connection(), ask.options.model, ask.caller.core_key)
        return [_told(message) for message in seen]

    async def _prompt(self, ask: RunRequest, note: str) -> list[Message]:
        prompt = ask.options.prompt if ask.options.prompt is not None else await self._engine.prompt()
        return [system(prompt + note)] if prompt or note else []

    async def _run(
        self,
        ask: RunRequest,
        messages: list[Message],
        tools: Sequence[BaseTool],
        permits: Permits,
        choice: RunChoice,
        observer: LoopObserver,
    ) -> RunOutcome:
        connection, options = self._engine.connection(), ask.options
        caller = self._caller(ask, permits.conversation)
        others = {tool["name"] for tool in options.tools}
        gate = permits.gate(options.mode, others)
        seconds = connection.limits.tool_seconds
        model = connection.chat_model(options.model, caller)
        shown = DefangedChoice(choice, suspicion(lambda: loop.toolbox.view(messages), connection.link_hosts))
        formed = JsonAnswer(shown, observer, others) if wants_json(options.model_options) else None
        loop = ToolLoop(
            ChoosingModel(model, [options.choice]) if options.choice not in (None, "auto") else model,
            Toolbox(tools, gate, connection.offloader, seconds, briefed=True),
            self._limits(connection.limits),
            formed or observer,
            options=_options(connection.options, options.model_options),
            window=connection.window(options.model, caller.api_key),
        )
        try:
            return await loop.run(messages, formed or shown, caller)
        finally:
            if formed is not None:
                formed.close()
            shown.close()

    def _limits(self, limits: Limits) -> Limits:
        return replace(limits, steps=self._engine.steps)

    def _caller(self, ask: RunRequest, conversation: str) -> Caller:
        caller = ask.caller

        async def principal() -> str:
            return caller.owner

        return Caller(caller.core_key, principal, conversation, dict(caller.headers), ask.files)


def _check_choice(choice: str | Mapping[str, Any] | None, tools: Sequence[BaseTool]) -> None:
    name = choice["function"]["name"] if isinstance(choice, Mapping) else None
    if name is not None and name not in named(tools):
        raise InvalidRequest(f"tool_choice names {name!r}, which is no tool of yours or of the agent's.")


def _told(message: Message) -> Message:
    """The message as a model is told it: the files of a question stand in its text."""
    is_question = message.role is Role.USER and message.custom_content is not None
    return replace(message, custom_content=None) if is_question else message


def _finish_reason(error: BaseException) -> str | None:
    # A provider that refuses the question itself does so with a status.
    ended = error.code if isinstance(error, ProviderError) and error.status_code is None else None
    return {CONTENT_FILTER: "content_filter", EMPTY_ANSWER: "stop"}.get(ended or "")


def _options(ours: ModelOptions, given: ModelOptions) -> ModelOptions:
    """The operator's options under the caller's."""
    told = {item.name: getattr(given, item.name) for item in fields(given) if item.name != "extra"}
    return replace(ours.over(**told), extra={**ours.extra, **given.extra})
