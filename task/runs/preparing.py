"""Turn what a caller sends into a run, at every door."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from task.conversation.messages import FunctionCall, Message, ToolCall
from task.conversation.replies import Answer
from task.core_client.models import Caller
from task.errors import ArgumentsError, Conflict, InvalidRequest
from task.permissions.gate import digest
from task.product import Profile, Services
from task.runs.request import RunCaller, RunOptions, RunRequest, session_title
from task.runs.state import RunState
from task.runs.table import Incoming, options_of
from task.store.records import Approval, Origin, Session, packed
from task.tools.toolbox import named

if TYPE_CHECKING:
    pass


class Preparing:
    """Turns what a caller sends into a run, and takes the answers of cards."""

    def __init__(self, services: Services, profile: Profile) -> None:
        self._services, self._profile = services, profile

    async def prepare(
        self, caller: RunCaller, sent: Sequence[Message], options: RunOptions, session_id: str | None
    ) -> RunRequest:
        """The run that the messages ask for, in the session where one is named.

        The messages may repeat what the session holds.

        Raises:
            NotFound: the caller has no such session, or there is no question of that code.
            Conflict: the session has ended; or the answer is about a question that is closed, was answered
                otherwise, or names none of several that are open.
        """
        incoming = Incoming(self._profile, await self._services.store.get(), caller, options)
        if session_id is None:
            return await incoming.alone(sent)
        return await incoming.in_session(await incoming.open_session(session_id), sent)

    async def in_session(
        self,
        caller: RunCaller,
        sent: Sequence[Message],
        options: RunOptions,
        session_id: str | None = None,
        origin: Origin = "api",
    ) -> RunRequest:
        """The run in the session; where none is named, in a new one, or in that of the question which is answered.

        `origin` is where a new session is started.

        Raises: as `prepare`.
        """
        request = await self.prepare(caller, sent, options, session_id)
        if session_id is not None or request.resumes is not None or request.again is not None:
            return request
        store = await self._services.store.get()
        session = await store.sessions.start(caller.owner, session_title(sent), origin)
        return replace(request, new=(*request.history, *request.new), history=(), session=session)

    async def after_run(
        self, caller: RunCaller, run: RunState, session: Session, new: Sequence[Message], options: RunOptions
    ) -> RunRequest:
        """The run that continues the conversation where that one ended; it branches off where others have followed.

        Raises: as `prepare`.
        """
        store = await self._services.store.get()
        return await Incoming(self._profile, store, caller, options).after_run(run, session, new)

    async def answer(self, caller: RunCaller, approval_id: str, answer: Answer) -> Approval:
        """The question with its answer from a card; the same answer again changes nothing.

        Raises:
            NotFound: the caller was not asked this.
            Conflict: it was answered otherwise, or it has expired.
            InvalidRequest: the changed arguments do not fit the tool.
        """
        approvals = (await self._services.store.get()).approvals
        asked = await approvals.get(caller.owner, approval_id)
        arguments, answer = answer.arguments, replace(answer, arguments=None)
        if arguments is not None and dict(arguments) != dict(asked.arguments):
            answer = await self._changed(caller, asked, answer, arguments)
        if asked.answer == answer:
            return asked
        try:
            return await approvals.answer(caller.owner, approval_id, answer)
        except Conflict:
            found = await approvals.get(caller.owner, approval_id)
            if found.answer == answer:  # the same answer came from another door
                return found
            raise

    async def resumed(self, caller: RunCaller, run_id: str) -> RunRequest | None:
        """The run that continues a suspended one after the answers of cards; None while one of its questions is open,
        or where it is not continued here.

        Raises:
            Conflict: the conversation no longer waits for the answers.
        """
        store = await self._services.store.get()
        asked = await store.approvals.list(caller.owner, run_id=run_id, waiting=False)
        if not asked:
            return None
        options = await options_of(store, caller.owner, run_id)
        return await Incoming(self._profile, store, caller, options).resumed("card", run_id, asked)

    async def _changed(self, caller: RunCaller, asked: Approval, answer: Answer, changed: Mapping[str, Any]) -> Answer:
        async def principal() -> str:
            return caller.owner

        profile = self._profile
        tools_caller = Caller(caller.core_key, principal, "", dict(caller.headers))
        own = [*await profile.own_tools(), *await profile.workspace_tools(tools_caller)]
        found = await self._services.mcp.discover(tools_caller, named(own))
        tool = named([*own, *found.tools]).get(asked.tool)
        if tool is None:
            raise Conflict(f"the tool {asked.tool!r} is no longer available; deny the call")
        try:
            arguments = tool.parse(ToolCall(asked.call_id, FunctionCall(asked.tool, packed(dict(changed)))))
        except ArgumentsError as error:
            raise InvalidRequest(str(error)) from error
        exact = digest(asked.tool, arguments, profile.rules.policy, tool.workspace_access(arguments))
        return replace(answer, arguments=arguments, grant=exact)
