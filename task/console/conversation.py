"""The console's conversation: answers in one session of the store, its questions and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from task.closing import run_blocking
from task.console.tool_requests import request_of
from task.conversation.messages import Attachment, CustomContent, Message, Role, message_from
from task.conversation.replies import Answer
from task.errors import AgentError, InvalidRequest
from task.product.framework import ConsoleProduct
from task.product.profile import CONSOLE
from task.runs.preparing import Preparing
from task.runs.request import RunCaller, RunOptions
from task.runs.runner import Runner
from task.store.records import Approval, Event, Run, RunStatus, Session

if TYPE_CHECKING:
    from task.store.store import Store  # which loads the database's libraries

OWNER = "local"  # as the HTTP API without keys calls everybody on this machine
STOPPING_SECONDS = 15.0
Show = Callable[[Event], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answered:
    """How a run ended, and what it wrote."""

    run_id: str
    status: RunStatus
    text: str = ""


def _unseen(event: Event) -> None:
    return None


@dataclass(slots=True)
class Conversation:
    """Runs in one session; without one the first message starts it. Methods wait for the background loop.

    `show` gets each event of a run, in the background thread. `attachments` go with the next message, `persona` and
    `model` are those of the conversation; empty: those of the settings. `tokens` counts those of the runs that were
    followed.
    """

    product: ConsoleProduct
    runner: Runner
    caller: RunCaller
    session_id: str | None = None
    persona: str = ""
    model: str = ""
    attachments: tuple[Attachment, ...] = ()
    show: Show = _unseen
    last: Answered | None = None
    tokens: int = 0
    _running: str | None = None

    def send_messages(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        """Answer the last message in the session. System messages are added to the system prompt; messages before the
        last one count where the session starts with it."""
        sent = [message_from(message) for message in messages]
        prompt = [message.text() for message in sent if message.role is Role.SYSTEM]
        spoken = [message for message in sent if message.role is not Role.SYSTEM]
        spoken[-1:] = [self._with_files(spoken[-1])]
        return self._response(self._follow(lambda: self._started(spoken, prompt)))

    def proceed(self) -> dict[str, Any]:
        """The response of the run that continues with the answers to all questions of the last one.

        Raises:
            Conflict: the conversation no longer waits for them.
        """
        asked = self._last().run_id
        return self._response(self._follow(lambda: self._resumed(asked)))

    def rejoin(self) -> dict[str, Any]:
        """The response of the session's last run, which may still be in progress, here or in another process."""
        self.last = self._until_end(self._last().run_id)
        return self._response(self.last)

    def response(self) -> dict[str, Any]:
        """The last run's response; its tool request is the first question that is open now."""
        return self._response(self._last())

    def questions(self) -> tuple[Approval, ...]:
        """The open questions of the last run, oldest first."""
        if self.last is None or self.last.status != "suspended":
            return ()
        run_id = self.last.run_id
        return self._stored(lambda store: store.approvals.list(self.caller.owner, run_id=run_id))

    def is_decided(self) -> bool:
        """Whether the last run has asked something, and nothing of it is open."""
        run_id = self._last().run_id
        asked = self._stored(lambda store: store.approvals.list(self.caller.owner, run_id=run_id, waiting=False))
        return bool(asked) and all(item.status != "waiting" for item in asked)

    def is_answered(self, asked: Approval) -> bool:
        """Whether the question is no longer open: it was answered somewhere, or it has expired."""
        now = self._stored(lambda store: store.approvals.get(self.caller.owner, asked.approval_id))
        return now.status != "waiting"

    def answer(self, asked: Approval, answer: Answer) -> None:
        """Answer the question; the first answer counts.

        Raises: as `task.runs.preparing.Preparing.answer`.
        """
        preparing = Preparing(self.product.services, self.product.profile)
        self.wait(preparing.answer, self.caller, asked.approval_id, answer)

    def expire(self, asked: Approval) -> None:
        """Close the question, because nobody answered it in time."""
        self._stored(lambda store: store.approvals.expire(self.caller.owner, asked.approval_id))

    def stop(self) -> None:
        """End the run in progress; what it has written stays."""
        if self._running is not None:
            self.wait(self.runner.stop, self.caller.owner, self._running)

    def open(self, session_id: str) -> Session:
        """Continue in this session; `last` is how its last run ended.

        Raises:
            NotFound: there is no such session.
        """
        session = self.wait(self._open, session_id)
        self.session_id = session_id
        return session

    def session(self, session_id: str | None) -> Session | None:
        """The session as it is stored now; None has none.

        Raises:
            NotFound: there is no such session.
        """
        if session_id is None:
            return None
        return self._stored(lambda store: store.sessions.get(self.caller.owner, session_id))

    def wait(self, function: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
        """The result of a coroutine function, run in the background loop."""
        return run_blocking(function, *arguments)

    def attach(self, message: Message) -> None:
        """Let the files of this message travel with the next one that is sent."""
        self.attachments = message.custom_content.attachments if message.custom_content is not None else ()

    def continue_from(self, earlier: Conversation) -> None:
        """Continue another conversation, with what was chosen for it."""
        self.session_id, self.last = earlier.session_id, earlier.last
        self.persona, self.model, self.tokens = earlier.persona, earlier.model, earlier.tokens

    def _last(self) -> Answered:
        if self.last is None:
            raise InvalidRequest("There is no answer yet.")
        return self.last

    def _with_files(self, message: Message) -> Message:
        files, self.attachments = self.attachments, ()
        return replace(message, custom_content=CustomContent(files)) if files else message

    def _follow(self, start: Callable[[], Coroutine[Any, Any, Run]]) -> Answered:
        try:
            run = self.wait(self._begun, start)
        except KeyboardInterrupt:  # it may have started all the same
            self.stop()
            raise
        self.session_id = run.session_id or self.session_id
        self.last = self._until_end(run.run_id)
        return self.last

    def _until_end(self, run_id: str) -> Answered:
        following = _Following(run_id, self._shown)
        self._running = run_id
        try:
            return self.wait(self._events, following)
        except KeyboardInterrupt:
            self.stop()
            return self.wait(self._stopped, following)
        finally:
            self._running = None

    def _shown(self, event: Event) -> None:
        if event.type == "usage":
            self.tokens += event.data["total_tokens"]
        self.show(event)

    async def _begun(self, start: Callable[[], Coroutine[Any, Any, Run]]) -> Run:
        run = await start()
        self._running = run.run_id
        return run

    async def _events(self, following: _Following) -> Answered:
        async for event in self.runner.events(self.caller.owner, following.run_id, following.seen):
            following.take(event)
        run = await (await self.product.services.store.get()).runs.ended(self.caller.owner, following.run_id)
        return Answered(run.run_id, run.status, following.text)

    async def _stopped(self, following: _Following) -> Answered:
        try:
            async with asyncio.timeout(STOPPING_SECONDS):
                return await self._events(following)
        except TimeoutError:
            return Answered(following.run_id, "cancelled", following.text)

    async def _started(self, sent: Sequence[Message], prompt: Sequence[str]) -> Run:
        options = self._options(prompt)
        new = sent if self.session_id is None else sent[-1:]
        request = await Preparing(self.product.services, self.product.profile).in_session(
            self.caller, new, options, self.session_id, "console"
        )
        return await self.runner.start(request)

    def _options(self, prompt: Sequence[str]) -> RunOptions:
        own = "\n\n".join((self.product.profile.prompt, *prompt)) if prompt else None
        return RunOptions(CONSOLE, self.model or self.product.profile.model, own, persona=self.persona)

    async def _resumed(self, run_id: str) -> Run:
        request = await Preparing(self.product.services, self.product.profile).resumed(self.caller, run_id)
        if request is None:
            raise AgentError("A question of this answer is still open.")
        return await self.runner.start(request)

    def _stored(self, ask: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        async def asked() -> T:
            return await ask(await self.product.services.store.get())

        return self.wait(asked)

    async def _open(self, session_id: str) -> Session:
        store = await self.product.services.store.get()
        await store.processes.interrupt_orphans()
        session = await store.sessions.get(self.caller.owner, session_id)
        runs = (await store.runs.list(self.caller.owner, session_id, limit=1)).items
        self.last = Answered(runs[0].run_id, runs[0].status) if runs else None
        return session

    def _response(self, answered: Answered) -> dict[str, Any]:
        asked = next(iter(self.questions()), None)
        return {"conversation": answered.text, "tool_request": request_of(asked) if asked is not None else None}


@dataclass(slots=True)
class _Following:
    run_id: str
    show: Show
    seen: int = 0
    text: str = ""

    def take(self, event: Event) -> None:
        self.seen = event.number
        if event.type == "text":
            self.text += event.data["text"]
        self.show(event)
