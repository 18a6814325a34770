"""What the calls of one conversation may do: the rules, the grants, and the answers to the questions just asked."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import time
from typing import TYPE_CHECKING

import aiohttp
import orjson

from task.approvals.questions import question
from task.conversation.inputs import Answer
from task.conversation.messages import FunctionCall, Message, ToolCall
from task.conversation.state import TurnState, WaitingCall
from task.core_client.models import Caller
from task.llm.dial import core_headers
from task.permissions.decisions import Gate, PermissionMode
from task.permissions.gate import AnsweredGate, Grant, Grants, PolicyGate
from task.permissions.icerc import plain
from task.permissions.policy import DEFAULT_POLICY, Policy
from task.store.access import patiently
from task.store.records import Approval
from task.tools.toolbox import Pending

if TYPE_CHECKING:
    from task.store.store import Store

logger = logging.getLogger(__name__)

DENIED = "the user denied it"
EXPIRED = "This approval came too late: the question is no longer open. Nothing has run."
OTHER_ARGUMENTS = "[The user approved this call with other arguments: {arguments}]"
FOLDER = "approvals"
_SECONDS = 15.0
_REMEMBERED = 10_000
_EXISTS = 412


class Claims:
    """The first to present the id of a suspended turn may run what was approved in it: remembered in this process."""

    def __init__(self, clock: Callable[[], float] = time) -> None:
        self._clock = clock
        self._taken: OrderedDict[str, float] = OrderedDict()

    async def take(self, turn: str, expires: float, api_key: str) -> bool:
        """True for the first request before the approval expires, False for every later one."""
        while self._taken and (len(self._taken) >= _REMEMBERED or next(iter(self._taken.values())) < self._clock()):
            self._taken.popitem(last=False)
        if turn in self._taken:
            return False
        self._taken[turn] = expires
        return True


class CoreClaims(Claims):
    """Leaves a note in the user's own files at Core, where every replica finds it.

    Without a Core that stores the note only this process knows what was approved.
    """

    def __init__(self, session: aiohttp.ClientSession, endpoint: str) -> None:
        super().__init__()
        self._session, self._base = session, endpoint.rstrip("/")

    async def take(self, turn: str, expires: float, api_key: str) -> bool:
        if not await super().take(turn, expires, api_key):
            return False
        try:
            async with asyncio.timeout(_SECONDS):
                base, headers = self._base, core_headers(api_key)
                async with self._session.get(f"{base}/v1/bucket", headers=headers, allow_redirects=False) as response:
                    response.raise_for_status()
                    home = orjson.loads(await response.read())
                form = aiohttp.FormData()
                form.add_field("file", turn.encode(), filename=f"{turn}.txt", content_type="text/plain")
                url = f"{base}/v1/files/{home.get('appdata') or home['bucket']}/{FOLDER}/{turn}.txt"
                first = {**headers, "If-None-Match": "*"}
                async with self._session.put(url, data=form, headers=first, allow_redirects=False) as response:
                    if response.status == _EXISTS:
                        return False
                    response.raise_for_status()
                    return True
        except (aiohttp.ClientError, TimeoutError, ValueError, KeyError, AttributeError) as error:
            logger.warning("an approval is known to this process only (%s)", type(error).__name__)
            return True


@dataclass(frozen=True, slots=True)
class ApprovalRules:
    """The policy, how long questions stay open and grants last, and the claims.

    `refresh` is awaited before each decision, and removes those of the grants that were revoked elsewhere.
    """

    policy: Policy = DEFAULT_POLICY
    claims: Claims = field(default_factory=Claims)
    open_seconds: float = 3600
    grant_seconds: float = 86_400
    clock: Callable[[], float] = time
    refresh: Callable[[Grants], Awaitable[None]] | None = None

    def grants_in(self, state: TurnState | None) -> Grants:
        """The grants of a conversation whose last turn has left this state."""
        try:
            return Grants.from_list(state.grants if state is not None else (), self.clock)
        except ValueError:  # of another version of the product
            return Grants(self.clock)


@dataclass(slots=True)
class Approvals:
    """What the calls of a turn may do beyond the rules: its grants, and the answers to the questions before it.

    `principal` and `conversation` say for whom and where grants hold; `denials` are by the calls' ids.
    """

    rules: ApprovalRules
    principal: str
    conversation: str
    grants: Grants
    denials: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    async def of(
        cls,
        rules: ApprovalRules,
        caller: Caller,
        state: TurnState | None,
        answers: Sequence[Answer | None],
        calls: Sequence[ToolCall],
    ) -> Approvals:
        """The approvals of a turn that continues from this state, with one answer for each of its waiting `calls`."""
        principal = await caller.principal() if state is not None else ""
        approvals = cls(rules, principal, caller.conversation_id, rules.grants_in(state))
        if state is not None and answers:
            tools = {call.id: call.name for call in calls}
            for waiting, answer in zip(state.pending, answers, strict=True):
                approvals.take(waiting.call_id, tools.get(waiting.call_id, ""), waiting.digest, answer)
        return approvals

    def take(self, call_id: str, tool: str, digest: str, answer: Answer | None) -> None:
        """Let the answer about this call count, once; None: its question has expired, which means no.

        What is to be allowed always, the gate widens when the call runs.
        """
        if answer is None:
            self.denials[call_id] = EXPIRED.removesuffix(".")
        elif not answer.allowed:
            said = f"{DENIED}: {answer.reason}" if answer.reason else DENIED
            self.denials[call_id] = said if answer.by_user else answer.reason
        else:
            expires = self.rules.clock() + self.rules.grant_seconds
            exact, whose = answer.grant or digest, (self.principal, self.conversation)
            self.grants.add(Grant("call", tool, *whose, expires, exact, once=True, widens=answer.always))

    def gate(self, mode: PermissionMode) -> Gate:
        """The gate that decides the calls of the turn."""
        rules, grants = self.rules, self.grants
        refresh = partial(rules.refresh, grants) if rules.refresh is not None else None
        gate = PolicyGate(rules.policy, grants, mode, self.principal, self.conversation, rules.clock, refresh)
        return AnsweredGate(gate, dict(self.denials)) if self.denials else gate


@dataclass(slots=True)
class RunApprovals:
    """The approvals of a recorded run, kept in the store: answers given before it, questions it asks, grants it leaves,
    which hold in its session."""

    store: Store
    rules: ApprovalRules
    owner: str
    session_id: str | None
    run_id: str
    answered: Sequence[Approval] = ()
    _before: list[Grant] = field(default_factory=list[Grant])
    _edits: dict[str, str] = field(init=False)  # arguments other than the model's that were approved, by calls' ids

    def __post_init__(self) -> None:
        self._edits = {
            item.call_id: json.dumps(dict(item.answer.arguments), ensure_ascii=False)
            for item in self.answered
            if item.answer is not None and item.answer.allowed and item.answer.arguments is not None
        }

    async def state(self) -> TurnState:
        """What the run continues from: the answered questions, and the grants of the session."""
        grants = await self._stored() if self.session_id is not None else []
        self._before = grants
        waiting = tuple(WaitingCall(item.call_id, item.digest, item.code) for item in self.answered)
        return TurnState(pending=waiting, grants=tuple(grant.as_dict() for grant in grants))

    def history(self, messages: Sequence[Message]) -> list[Message]:
        """The conversation with the calls as they were approved."""

        def edited(call: ToolCall) -> ToolCall:
            arguments = self._edits.get(call.id)
            return call if arguments is None else replace(call, function=FunctionCall(call.name, arguments))

        if not self._edits:
            return list(messages)
        return [replace(message, tool_calls=tuple(map(edited, message.tool_calls))) for message in messages]

    def with_notes(self, added: Sequence[Message]) -> tuple[Message, ...]:
        """The run's messages; results of changed calls note the new arguments, as the stored call has the old ones."""
        notes = {call_id: OTHER_ARGUMENTS.format(arguments=arguments) for call_id, arguments in self._edits.items()}
        return tuple(
            replace(message, content=f"{notes[message.tool_call_id]}\n\n{message.text()}")
            if message.tool_call_id in notes
            else message
            for message in added
        )

    async def ask(self, pending: Sequence[Pending], session_id: str, said: str) -> tuple[str, list[Approval]]:
        """Store a question about each of these calls; returns their text, to follow `said`, and the questions."""
        asked: list[Approval] = []
        for item in pending:
            card = item.card.displayed()
            card |= {"reason": plain(item.reason), "grant_description": plain(item.grant_description)}
            found = await self.store.approvals.ask(
                self.owner,
                call_id=item.call.id,
                tool=item.call.name,
                arguments=item.arguments,
                digest=item.digest,
                card=card,
                seconds=self.rules.open_seconds,
                session_id=session_id,
                run_id=self.run_id,
            )
            asked.append(found)
        return question(pending, [item.code for item in asked], self.rules.open_seconds, said), asked

    async def save(self, grants: Sequence[Grant]) -> None:
        """Store the grants that outlast this run."""
        for grant in grants:
            if grant not in self._before:
                seconds = grant.expires - self.rules.clock()
                data = {**grant.as_dict(), "description": grant.describe()}
                await self.store.grants.add(self.owner, data, session_id=self.session_id, seconds=seconds)

    async def refresh(self, grants: Grants) -> None:
        """Keep the run, and remove the grants that were revoked elsewhere since it started."""
        await self.store.runs.hold(self.run_id)
        if not self._before:
            return
        valid = await self._stored()
        for grant in [grant for grant in self._before if grant not in valid]:
            self._before.remove(grant)
            grants.revoke(grant)

    async def _stored(self) -> list[Grant]:
        stored = await patiently(lambda: self.store.grants.list(self.owner, self.session_id))
        return Grants.from_list([item.data for item in stored], self.rules.clock).lasting()
