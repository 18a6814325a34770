"""GeneralPurposeAgent: one DIAL request, from its messages to the saved state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any
from uuid import uuid4

from aidial_sdk.chat_completion import Choice, Request, Response
from aidial_sdk.chat_completion import Message as DialMessage

from task.approvals.door import Door, Said
from task.connection import Connection, open_connection
from task.conversation.history import repaired
from task.conversation.inputs import Incoming, Pictures, conversation, is_image
from task.conversation.links import Suspicion
from task.conversation.messages import Message, Role, ToolCall, assistant, tool_message
from task.conversation.sanitized_choice import DefangedChoice
from task.conversation.state import TOOL_CALL_HISTORY_KEY, StateRejected, TurnState, turn_history
from task.dial.folding import FoldedChoice
from task.dial.request import caller_of, configuration_of, incoming_of
from task.errors import ToolError
from task.llm.base import Usage
from task.loop import LoopObserver, RunOutcome, SilentObserver, ToolLoop
from task.permissions.decisions import Gate, ModeGate
from task.tools.base import BaseTool
from task.tools.models import Caller
from task.tools.toolbox import Pending, Toolbox, named

logger = logging.getLogger(__name__)

CONVERSATION_REFERENCE = "conversation"
CUT_OFF = "\n\n[The answer was cut off at the model's limit of tokens.]"


class GeneralPurposeAgent:
    """Answers DIAL requests with a model and tools. Source: API reference, GeneralPurposeAgent.

    `state` is the hidden state of the last request. `connection` is the process's shared models and files; without it
    the agent makes its own for `endpoint`. `observer` hears what the run does.
    """

    def __init__(
        self,
        endpoint: str,
        system_prompt: str,
        tools: list[BaseTool],
        *,
        connection: Connection | None = None,
        observer: LoopObserver | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.system_prompt = system_prompt
        self.tools = tools
        self._tools_dict = named(tools)
        self.state: dict[str, Any] = {TOOL_CALL_HISTORY_KEY: []}
        self._connection = connection
        self._observer = observer or SilentObserver()

    async def handle_request(
        self, deployment_name: str, choice: Choice, request: Request, response: Response
    ) -> Message:
        """Answer the request into `choice`, save the state, and return the final assistant message.

        Raises:
            InvalidRequest: the request cannot be answered as it is.
            ProviderError: the model refused or failed; text that was written and the state stay.
        """
        connection = self._connected()
        incoming, configuration = incoming_of(request.messages, request.model_extra), configuration_of(request)
        caller = caller_of(request, self._principal_of(request.api_key))
        principal = await caller.principal() if any(item.state for item in incoming) else ""
        turns = self._turns(incoming, principal)
        caller = _with_conversation(caller, incoming, turns)
        door = Door(connection.permissions, incoming, turns, (principal, caller.conversation_id))
        if said := await door.said(caller.api_key):
            return self._say(said, choice, principal)
        found = await connection.mcp.discover(caller, self._tools_dict)
        found.show(choice)
        pictures = await self._pictures(incoming, deployment_name, caller)
        prompt = self.system_prompt + found.note()
        messages = conversation(prompt, incoming, turns, pictures, resuming=door.resumed is not None)
        chosen = configuration.temperature if configuration.temperature is not None else request.temperature
        loop = ToolLoop(
            connection.chat_model(deployment_name, caller),
            self._toolbox(door.gate(configuration.permission_mode), found.tools),
            connection.limits,
            _PrincipalInTime(caller.principal, self._observer),
            options=connection.options.over(temperature=chosen, top_p=request.top_p, max_tokens=_max_tokens(request)),
            window=connection.window(deployment_name, caller.api_key),
        )
        outcome = await self._run(loop, messages, choice, caller, door)
        if outcome.error is not None:
            raise outcome.error  # without usage: the SDK would send it in a chunk that no client can parse
        response.set_usage(outcome.usage.prompt_tokens, outcome.usage.completion_tokens)
        return outcome.answer

    async def _run(
        self, loop: ToolLoop, messages: list[Message], choice: Choice, caller: Caller, door: Door
    ) -> RunOutcome:
        folded = FoldedChoice(choice)
        shown = DefangedChoice(folded, self._suspicion(loop.toolbox, messages))
        start = len(messages) - (len(door.resumed.turn.history) if door.resumed is not None else 0)
        pending, failed = tuple[Pending, ...](), True
        try:
            outcome = await loop.run(messages, shown, caller)
            if outcome.cut:
                shown.append_content(CUT_OFF)
            shown.close()
            pending, failed = outcome.pending, outcome.status == "failed"
            door.show(folded)
            if pending:
                _ask(door.ask(pending, named(loop.toolbox.tools), folded), choice, outcome)
            return outcome
        finally:
            shown.close()
            folded.close(failed=failed)
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # else the client is gone, and nobody is left to keep a state
                added = repaired(messages[start:], [item.call.id for item in pending])
                await self._save(choice, door.state(turn_history(added), pending, _references(caller)), caller)

    def _suspicion(self, toolbox: Toolbox, messages: Sequence[Message]) -> Suspicion:
        return Suspicion(
            lambda url: toolbox.view(messages).knows(url),
            lambda: toolbox.view(messages).tainted,
            self._connected().link_hosts,
        )

    async def _save(self, choice: Choice, turn: TurnState | None, caller: Caller) -> None:
        if turn is not None:
            self.state = self._connected().seal.pack(turn, await caller.principal())
            choice.set_state(self.state)

    def _say(self, said: Said, choice: Choice, principal: str) -> Message:
        choice.append_content(said.text)
        if said.form is not None:
            choice.set_form_schema(said.form)
        if said.state is not None:
            self.state = self._connected().seal.pack(said.state, principal)
            choice.set_state(self.state)
        return assistant(said.text)

    def _turns(self, incoming: Sequence[Incoming], principal: str) -> dict[int, TurnState]:
        """What the messages' states hold, by position; a state that is not ours for this principal is left out."""
        turns: dict[int, TurnState] = {}
        for position, item in enumerate(incoming):
            if item.state is None or TOOL_CALL_HISTORY_KEY not in item.state:
                continue
            try:
                turns[position] = self._connected().seal.unpack(item.state, principal)
            except StateRejected as reason:
                logger.warning("a saved state was dropped: %s", reason)
        return turns

    def _prepare_messages(self, messages: list[DialMessage], principal: str = "") -> list[dict[str, Any]]:
        """The messages in OpenAI's format: system prompt, attachments as text, tool history sealed for `principal`."""
        incoming = incoming_of(messages)
        turns = self._turns(incoming, principal)
        return [message.as_dict() for message in conversation(self.system_prompt, incoming, turns, {})]

    async def _pictures(self, incoming: Sequence[Incoming], deployment: str, caller: Caller) -> Pictures | None:
        images = [
            (place, item) for place, message in enumerate(incoming) for item in message.attachments if is_image(item)
        ]
        if not images:
            return {}
        connection = self._connected()
        if not await connection.listings.accepts_images(deployment, caller.api_key):
            return None
        urls: dict[int, list[str]] = {}
        for place, image in images:
            try:
                url = await connection.image_url(image, caller.api_key)
            except ToolError as error:
                logger.warning("a picture was left out: %s", error)
                continue
            urls.setdefault(place, []).extend([url] if url else [])
        return urls

    def _toolbox(self, gate: Gate | None = None, further: Sequence[BaseTool] = ()) -> Toolbox:
        connection = self._connected()
        tools = [*self.tools, *further]
        briefed = gate is not None
        return Toolbox(tools, gate or ModeGate(), connection.offloader, connection.limits.tool_seconds, briefed=briefed)

    async def _process_tool_call(
        self, tool_call: ToolCall, choice: Choice, api_key: str, conversation_id: str
    ) -> Message:
        """Run one call in a stage of its own. Source: API reference, GeneralPurposeAgent."""
        caller = Caller(api_key, self._principal_of(api_key), conversation_id)
        [result] = await self._toolbox().call_all([tool_call], choice, caller)
        return result if isinstance(result, Message) else tool_message(tool_call, result.reason, failed=True)

    def _principal_of(self, api_key: str) -> Callable[[], Awaitable[str]]:
        async def principal() -> str:
            try:
                return await self._connected().files.principal(api_key)
            except ToolError as error:  # no Core, or one that does not tell: the key itself is the identity
                logger.warning("the caller's bucket is unknown: %s", error)
                return f"key:{sha256(api_key.encode()).hexdigest()[:32]}"

        return _once(principal)

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = open_connection(self.endpoint)
        return self._connection


class _PrincipalInTime:
    """Asks who the caller is while the first tools run, so that the end of the answer need not wait for it; what it
    hears it tells `observer`."""

    def __init__(self, principal: Callable[[], Awaitable[str]], observer: LoopObserver) -> None:
        self._principal, self._observer = principal, observer
        self._asking: asyncio.Future[str] | None = None
        self.decided, self.call_ended = observer.decided, observer.call_ended
        self.limit_hit, self.run_ended = observer.limit_hit, observer.run_ended

    def model_answered(self, message: Message, usage: Usage, seconds: float) -> None:
        if message.tool_calls and self._asking is None:
            self._asking = asyncio.ensure_future(self._principal())
        self._observer.model_answered(message, usage, seconds)


def _ask(question: Said, choice: Choice, outcome: RunOutcome) -> None:
    spoke = any(message.role is Role.ASSISTANT and message.text() for message in outcome.added)
    choice.append_content(f"\n\n{question.text}" if spoke else question.text)
    choice.set_form_schema(question.form or {})


def _with_conversation(caller: Caller, incoming: Sequence[Incoming], turns: Mapping[int, TurnState]) -> Caller:
    """The caller with the conversation's files and its id: the client's own, the saved one, or a new one."""
    files = tuple(attachment for item in incoming for attachment in item.attachments)
    saved = (turns[position].references.get(CONVERSATION_REFERENCE, "") for position in sorted(turns, reverse=True))
    return replace(
        caller, conversation_id=caller.conversation_id or next(filter(None, saved), "") or uuid4().hex, files=files
    )


def _references(caller: Caller) -> dict[str, str]:
    return {CONVERSATION_REFERENCE: caller.conversation_id}


def _max_tokens(request: Request) -> int | None:
    return request.max_completion_tokens or request.max_tokens


def _once(ask: Callable[[], Awaitable[str]]) -> Callable[[], Awaitable[str]]:
    task: asyncio.Future[str] | None = None

    async def answer() -> str:
        nonlocal task
        if task is None:
            task = asyncio.ensure_future(ask())
        return await asyncio.shield(task)

    return answer
