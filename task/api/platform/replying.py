"""A person's decision in words: the next message of a conversation that waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from task.api.edge.identity import ApiCaller
from task.api.openai.incoming import IncomingMessages
from task.api.platform.approvals import ALWAYS
from task.api.platform.idempotency import ANSWERED, later_runs
from task.api.platform.kept_turns import completed, conversation_key, decides, ends_with, is_decision, words_of
from task.api.platform.run_request import RunOptions, RunRequest
from task.conversation.history import unanswered
from task.conversation.messages import Attachment, Message, Role
from task.conversation.replies import Verdict, read_reply
from task.errors import Conflict
from task.store.merge import merged
from task.store.records import Answer, Approval, Session
from task.store.store import Store

OTHERWISE = (
    "This question was answered differently before, and the first answer counts. Ask again for what is wanted now."
)
BROKEN_OFF = (
    "This question was answered before. What was approved may have run, but the answer broke off: say what next."
)


async def decided_alone(
    store: Store, caller: ApiCaller, sent: Sequence[Message], options: RunOptions
) -> RunRequest | None:
    """The run that a caller without a session has decided about, with the question and the words at the end.

    Raises:
        Conflict: the question was answered before, otherwise.
    """
    if not decides(sent, len(sent) - 1):
        return None
    key = conversation_key(caller.owner, options.prompt, sent[:-2])
    asked = await store.approvals.list(caller.owner, waiting=False)
    found = await _replied(store, caller, [item for item in asked if item.conversation == key], sent, options)
    return await _with_start(store, caller, found, sent, options)


async def decided_in(
    store: Store, caller: ApiCaller, session: Session, received: IncomingMessages, options: RunOptions
) -> RunRequest | None:
    """The run that the last message decides about in this session.

    Words alone answer what the session waits for. Behind other messages they answer what these end with: the client may
    have gone back in its history, and its yes is one to something else then.

    Raises:
        Conflict: it was answered before, otherwise.
    """
    sent = received.messages
    if not is_decision(sent[-1]):
        return None
    if len(sent) == 1:
        again = await _last_again(store, caller, session, sent[0], options) if received.retried else None
        return again or await _decided(store, caller, session, sent[0], options)
    found = await _decided_behind(store, caller, session, sent, options) if decides(sent, len(sent) - 1) else None
    if found is None and await _is_all(store, caller, session, sent[:-1], options):
        found = await _decided(store, caller, session, sent[-1], options)
    return await _with_start(store, caller, found, sent, options)


async def decided_before(
    store: Store, caller: ApiCaller, session: Session, run_id: str, sent: Sequence[Message], options: RunOptions
) -> RunRequest | None:
    """The run that continued this suspended one, where the one message repeats the answers to its questions.

    Raises:
        Conflict: they were answered otherwise.
    """
    asked = await store.approvals.list(caller.owner, run_id=run_id, waiting=False)
    return await _again(store, caller, session, asked, sent[0], options) if asked and len(sent) == 1 else None


def resuming(caller: ApiCaller, session: Session, approvals: Sequence[Approval], options: RunOptions) -> RunRequest:
    """The run that continues from the end of the session."""
    history = session.messages
    return RunRequest(caller, options, (), history, session, files_of(history), tuple(approvals))


def files_of(messages: Sequence[Message]) -> tuple[Attachment, ...]:
    """The files of the user's messages."""
    return tuple(
        item
        for message in messages
        if message.role is Role.USER and message.custom_content is not None
        for item in message.custom_content.attachments
    )


async def _with_start(
    store: Store, caller: ApiCaller, request: RunRequest | None, sent: Sequence[Message], options: RunOptions
) -> RunRequest | None:
    if request is None:
        return None
    before = await completed(store, caller.owner, options.prompt, sent[:-1])
    return replace(request, sent=tuple(sent), start=before.start)


async def _decided_behind(
    store: Store, caller: ApiCaller, session: Session, sent: Sequence[Message], options: RunOptions
) -> RunRequest | None:
    here: list[Approval] = []
    elsewhere: list[Approval] = []
    for session_id in (session.session_id, *await store.sessions.branches(session.session_id)):
        asked = await store.approvals.list(caller.owner, session_id=session_id, waiting=False)
        put = [item for item in asked if ends_with(sent[-2].text(), item.question)]
        if not put:
            continue
        held = await store.sessions.get(caller.owner, session_id)
        follows = _follows(held.messages, sent[:-1])
        if follows and any(item.status == "waiting" for item in put):
            return await _replied(store, caller, put, sent, options)
        (here if follows else elsewhere).extend(item for item in put if item.status != "waiting")
    return await _replied(store, caller, here or elsewhere, sent, options)


async def _replied(
    store: Store, caller: ApiCaller, asked: Sequence[Approval], sent: Sequence[Message], options: RunOptions
) -> RunRequest | None:
    # Nothing, where other calls are asked about in the same words, spaces aside: the person has read one of the two.
    said = sent[-2].text().rstrip()
    put = [item for item in asked if item.session_id and ends_with(said, item.question)]
    put = [item for item in put if said.endswith(item.question)] or put
    newest = [item for item in put if item.run_id == put[-1].run_id]
    calls = {item.digest for item in newest}
    if not newest or any(item.status == "waiting" and item.digest not in calls for item in put):
        return None
    session = await store.sessions.get(caller.owner, newest[0].session_id or "")
    if any(item.status == "waiting" for item in newest):
        return await _decided(store, caller, session, sent[-1], options)
    return await _again(store, caller, session, newest, sent[-1], options)


async def _is_all(
    store: Store, caller: ApiCaller, session: Session, sent: Sequence[Message], options: RunOptions
) -> bool:
    # The question aside: the client has shown it in another way.
    conversation = await completed(store, caller.owner, options.prompt, sent)
    fit = merged(session.messages, conversation.messages)
    return not (fit.new or fit.branched)


def _follows(held: Sequence[Message], sent: Sequence[Message]) -> bool:
    # Decisions aside; a client may send the last messages only.
    said = [message.text() for message in held if message.role is Role.USER]
    for place in range(len(sent) - 1, -1, -1):
        if sent[place].role is not Role.USER:
            continue
        if said and said[-1] == sent[place].text():
            said.pop()
        elif not decides(sent, place):
            return False
    return True


async def _last_again(
    store: Store, caller: ApiCaller, session: Session, said: Message, options: RunOptions
) -> RunRequest | None:
    # A question that this run has put is not what the word answers: the client has not read it. Where the decision
    # was another one, this run's question is what the word answers, and it is new.
    runs = (await store.runs.list(caller.owner, session.session_id, limit=2)).items
    asked = await store.approvals.list(caller.owner, run_id=runs[1].run_id, waiting=False) if len(runs) > 1 else ()
    return await _again(store, caller, session, asked, said, options) if asked and _repeats(asked, said) else None


async def _decided(
    store: Store, caller: ApiCaller, session: Session, said: Message, options: RunOptions
) -> RunRequest | None:
    calls = unanswered(session.messages)
    waiting = await store.approvals.list(caller.owner, session_id=session.session_id) if calls else ()
    if not waiting:
        return None
    found = await store.approvals.list(caller.owner, run_id=waiting[-1].run_id, waiting=False)
    by_call = {item.call_id: item for item in found}
    asked = [by_call[call.id] for call in calls if call.id in by_call]
    verdicts = read_reply(words_of(said), None, _codes(asked)) if len(asked) == len(calls) else None
    if verdicts is None:
        return None
    answered = [
        await store.approvals.answer(caller.owner, item.approval_id, _answer(verdict))
        if item.status == "waiting"
        else item
        for item, verdict in zip(asked, verdicts, strict=True)
    ]
    return resuming(caller, session, answered, options)


async def _again(
    store: Store, caller: ApiCaller, session: Session, asked: Sequence[Approval], said: Message, options: RunOptions
) -> RunRequest | None:
    # One that failed before it wrote anything continues where it stopped: what was approved has run.
    same = _repeats(asked, said)
    if same is None:
        return None
    if not same:
        raise Conflict(OTHERWISE)
    later = await later_runs(store, caller, session, asked[0].run_id)
    if later == [] and unanswered(session.messages):  # no run has continued yet
        return resuming(caller, session, asked, options)
    if not later:
        return None
    run = later[-1]
    if run.status in ANSWERED:
        return RunRequest(caller, options, (), again=run.run_id)
    if len(later) == 1 and session.messages[-1].role is Role.TOOL and not unanswered(session.messages):
        return resuming(caller, session, (), options)
    raise Conflict(BROKEN_OFF)


def _repeats(asked: Sequence[Approval], said: Message) -> bool | None:
    # None: the words decide nothing, or some of the questions have expired.
    verdicts = read_reply(words_of(said), None, _codes(asked))
    answers = [item.answer for item in asked if item.answer is not None]
    if verdicts is None or len(answers) < len(asked):  # it is as if nothing had been asked
        return None
    return [answer.allowed for answer in answers] == [verdict.choice != "deny" for verdict in verdicts]


def _codes(asked: Sequence[Approval]) -> list[str]:
    return [str(item.card.get("code", "")) for item in asked]


def _answer(verdict: Verdict) -> Answer:
    if verdict.choice == "deny":
        return Answer(False, verdict.reason)
    return Answer(True, ALWAYS if verdict.choice == "always" else "")
