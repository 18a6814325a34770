"""What the calls of one conversation may do: the rules, the grants, and what the user decides about waiting calls by
words, buttons, or a line at a terminal."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import time
from typing import TYPE_CHECKING, Any

from cachetools import TLRUCache

from task.approvals.forms import EVERY, LEFT_OPEN, NOT_CHOSEN, decided
from task.conversation.inner import asked_for
from task.conversation.inputs import Answer, Choice, Incoming
from task.conversation.messages import Message, Role, ToolCall
from task.conversation.state import TurnState, WaitingCall
from task.core_client.files import DialFiles
from task.core_client.models import Caller
from task.errors import ToolError
from task.permissions.decisions import PermissionMode
from task.permissions.gate import Grant, Grants, PolicyGate
from task.permissions.icerc import plain
from task.permissions.policy import DEFAULT_POLICY, Policy
from task.store.access import patiently
from task.store.records import Approval, new_id
from task.tools.toolbox import Pending

if TYPE_CHECKING:
    from task.store.store import Store

logger = logging.getLogger(__name__)

DENIED = "the user denied it"
EXPIRED = "This approval came too late: the question is no longer open. Nothing has run."
FOLDER = "approvals/"
_REMEMBERED = 10_000
_EXISTS = 412


class Claims:
    """The first to present the id of a suspended turn may run what was approved in it.

    Each is remembered in this process, and by a note in the user's own `files` at Core, where every replica finds it;
    without a Core that stores the note only this process knows what was approved.
    """

    def __init__(self, files: DialFiles | None = None) -> None:
        self._files = files
        self._taken = TLRUCache[str, float](_REMEMBERED, ttu=lambda _, expires, __: expires, timer=time)

    async def take(self, turn: str, expires: float, api_key: str) -> bool:
        """True for the first request before the approval expires, False for every later one."""
        if turn in self._taken:
            return False
        self._taken[turn] = expires
        try:
            if self._files is not None:
                await self._files.upload(f"{turn}.txt", turn.encode(), "text/plain", api_key, FOLDER)
        except ToolError as error:
            if getattr(error.__cause__, "status", None) == _EXISTS:
                return False
            logger.warning("an approval is known to this process only (%s)", type(error.__cause__).__name__)
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

    `principal` and `conversation` say for whom and where grants hold; `denials` are by the calls' ids, and
    so is what the user `said` to tools that asked for something.
    """

    rules: ApprovalRules
    principal: str
    conversation: str
    grants: Grants
    denials: dict[str, str] = field(default_factory=dict[str, str])
    said: dict[str, str] = field(default_factory=dict[str, str])

    @classmethod
    async def of(
        cls,
        rules: ApprovalRules,
        caller: Caller,
        state: TurnState | None,
        answers: Sequence[Answer | None],
        calls: Sequence[ToolCall],
    ) -> Approvals:
        """The approvals of a turn that continues from this state, with one answer for each of its waiting calls, which
        are among `calls`."""
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
        outer, asked = asked_for(call_id)
        call_id = outer or call_id
        if answer is None:
            self.denials[call_id] = EXPIRED.removesuffix(".")
        elif not answer.allowed and answer != LEFT_OPEN:
            said = f"{DENIED}: {answer.reason}" if answer.reason else DENIED
            self.denials[call_id] = said if answer.by_user else answer.reason
        elif answer.allowed and asked:
            self.said[asked] = answer.reason if answer.arguments is None else json.dumps(answer.arguments)
        elif answer.allowed and answer.reason:  # an answer, but not to a question
            self.denials[call_id] = NOT_CHOSEN.reason
        elif answer.allowed:
            expires = self.rules.clock() + self.rules.grant_seconds
            exact, whose = answer.grant or digest, (self.principal, self.conversation)
            self.grants.add(Grant("call", tool, *whose, expires, exact, once=True, widens=answer.always))

    def gate(self, mode: PermissionMode) -> PolicyGate:
        """The gate that decides the calls of the turn."""
        rules, grants, denials = self.rules, self.grants, dict(self.denials)
        refresh = partial(rules.refresh, grants) if rules.refresh is not None else None
        return PolicyGate(rules.policy, grants, mode, self.principal, self.conversation, refresh, denials)


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

    async def state(self) -> TurnState:
        """What the run continues from: the answered questions, and the grants of the session."""
        grants = await self._stored() if self.session_id is not None else []
        self._before = grants
        waiting = tuple(WaitingCall(item.call_id, item.digest, item.code) for item in self.answered)
        return TurnState(pending=waiting, grants=tuple(grant.as_dict() for grant in grants))

    async def ask(self, pending: Sequence[Pending], session_id: str) -> list[Approval]:
        """Store a question about each of these calls."""
        asked, approvals = list[Approval](), self.store.approvals
        for item in pending:
            card = item.card.displayed()
            card |= {"reason": plain(item.reason), "grant_description": plain(item.grant_description)}
            call, now = item.call, approvals.clock()
            about = (self.owner, call.id, call.name, item.arguments, item.digest)
            times = (now, now + self.rules.open_seconds)
            made = Approval(new_id("appr", 16), *about, *times, card, session_id, self.run_id)
            asked.append(await approvals.ask(made))
        return asked

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


REASON_CHARS = 1_000
DECISION_CHARS = 20_000  # a longer text is no decision

# The words of the question, of its buttons, and a plain yes or no. "OK" or "sure" may only mean "I see".
_WORDS: Mapping[str, Choice] = {
    "approve": "approve",
    "allow": "approve",
    "yes": "approve",
    "always allow": "always",
    "always": "always",
    "deny": "deny",
    "no": "deny",
}
# ASCII only: look-alike letters or invisible characters must not make a decision. Possessive (`++`, `?+`) where spaces
# may follow each other: otherwise a long row of them would be tried at each of its positions.
_CODE = r"[a-z]\d[a-z]\d"
_AND = r"\s*+(?:,(?:\s*+and\b)?|\band\b|&)\s*+"
_ANSWER = re.compile(rf"(?:^|\n)[ \t]*answer\s+({_CODE})\s*:", re.ASCII | re.IGNORECASE)
_CLAUSE = re.compile(rf"({'|'.join(_WORDS)})(?:\s+(all|{_CODE}(?:{_AND}{_CODE})*))?(?![\w'])", re.ASCII | re.IGNORECASE)
_NAMED = re.compile(_CODE, re.ASCII)
_JOIN = re.compile(_AND, re.ASCII | re.IGNORECASE)
_REASON = re.compile(r"\s*+(?:,?+\s*+because\b|[,:.-])\s*+([^\s.!].*)", re.ASCII | re.IGNORECASE | re.DOTALL)
_END = re.compile(r"(?>(?:\s*+,?+\s*+please)?)\s*+[.!]?+\s*+", re.ASCII | re.IGNORECASE)
_SEGMENTS = re.compile(r"[\n;]")


def decision_of(item: Incoming, codes: Sequence[str]) -> tuple[Answer, ...] | None:
    """The decision about the waiting calls with these codes that a message consists of.

    None: it is not one, or not the user's.
    """
    return read_reply(item.text(), item.form_value, codes) if _may_decide(item) else None


def words_of(message: Message) -> str:
    """The user's text where it may be a decision, else empty."""
    return message.text() if _may_decide(message) else ""


def _may_decide(message: Message) -> bool:
    # A message with files is never a decision: they would belong to a question.
    if message.role is not Role.USER or message.attachments:
        return False
    return not isinstance(message.content, list) or all(part.get("type") == "text" for part in message.content)


def read_reply(text: str, form_value: Any, codes: Sequence[str]) -> tuple[Answer, ...] | None:
    """One answer for each waiting call, in the order of their `codes`; None: this decides nothing about them.

    A button counts first, and leaves the calls that it is not about open. Words without a code are about every call;
    calls that words do not name are denied. A code that is not among `codes` makes the whole reply void, and so do
    words that decide otherwise than the button that was pressed with them.
    """
    from_text, from_form, found = None, decided(form_value, codes), _decision(text)
    if found and codes and found.keys() <= {EVERY, *codes}:
        rest = found.get(EVERY, NOT_CHOSEN)
        from_text = tuple(found.get(code, rest) for code in codes)
    if from_form is None or found is None:
        return from_form or from_text
    bare = [[replace(item, reason="") for item in items] for items in (from_form, from_text or ())]
    if from_text is None or bare[0] != bare[1]:
        return None
    return tuple(said if said.by_user else pressed for pressed, said in zip(from_form, from_text, strict=True))


def codes_in(text: str) -> tuple[str, ...] | None:
    """The codes that a decision in words names, in their order; none where it is about every call.

    None: the text is not a decision.
    """
    found = _decision(text)
    return None if found is None else tuple(code for code in found if code != EVERY)


def typed_answer(line: str) -> Answer | None:
    """The answer in a line at a terminal: yes, always, or no with a reason; None: none of these."""
    word, _, rest = line.strip().partition(" ")
    match word.lower().rstrip(",.:"):
        case "y" | "yes" | "approve" if not rest:
            return Answer(True)
        case "a" | "always" if not rest:
            return Answer(True, always=True)
        case "answer" if rest:
            return Answer(True, rest.strip())
        case "n" | "no" | "deny":
            return Answer(False, rest.strip().removeprefix("because ").strip())
        case _:
            return None


def _decision(text: str) -> Mapping[str, Answer] | None:
    # The answers by codes; None also where two contradict each other, or one is about every call and another is not.
    text = text.strip(" \t\r\n")
    parts = _ANSWER.split(text) if text[:6].lower() == "answer" and len(text) <= DECISION_CHARS else []
    if parts[1:] and not parts[0]:
        return {code.lower(): Answer(True, said.strip()) for code, said in zip(parts[1::2], parts[2::2], strict=True)}
    if len(text) > DECISION_CHARS or _CLAUSE.match(text) is None:  # most messages, some of them long
        return None
    found: dict[str, Answer] = {}
    for segment in _SEGMENTS.split(text):
        line, place = segment.strip(" \t\r"), 0
        while place < len(line) or not line:
            if (clause := _CLAUSE.match(line, place)) is None:
                return None
            choice, place, reason = _WORDS[clause[1].lower()], clause.end(), ""
            join = _JOIN.match(line, place)
            if join and _CLAUSE.match(line, join.end()):
                place = join.end()
            elif _END.fullmatch(line, place):
                place = len(line)
            elif choice == "deny" and (because := _REASON.fullmatch(line, place)):
                place, reason = len(line), because[1].strip()[:REASON_CHARS]
            else:
                return None
            answer = Answer.of(choice, reason)
            codes = _NAMED.findall((clause[2] or "").lower())
            if any(found.setdefault(code, answer) != answer for code in codes or (EVERY,)):
                return None
    return found if EVERY not in found or len(found) == 1 else None
