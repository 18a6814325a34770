"""How a run starts: once for its request, alone in its session, and where its owner has room."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, func, select

from task.conversation.messages import Message
from task.errors import Conflict, TooManyRuns
from task.store import tables
from task.store.database import insert_new
from task.store.keys import claimed
from task.store.records import AlreadyStarted, RequestKey, Run, Session
from task.store.sessions import append, shorten

_runs = tables.runs


def undo(run_id: str, session: Session | None, clock: Callable[[], float], connection: Connection) -> None:
    """Withdraw a run that nothing has seen: the same request may start it again, under the same key."""
    if not connection.execute(delete(_runs).where(_runs.c.id == run_id, _runs.c.status == "running")).rowcount:
        return
    connection.execute(delete(tables.request_keys).where(tables.request_keys.c.run_id == run_id))
    if session is not None:
        unchanged = tables.sessions.c.version == session.version + 1
        shorten(connection, session.session_id, session.length, clock(), unchanged)


def claim(connection: Connection, run: Run, key: RequestKey | None) -> None:
    """Let the run be the one that its request, and the suspended run that it continues, have started.

    Raises:
        AlreadyStarted, KeyReused: as `Runs.start` says.
    """
    # Whoever comes second with the key, or to the suspended run, waits for the session, and then finds the first one.
    if run.session_id is not None and (key is not None or run.resumes is not None):
        sessions = tables.sessions.c
        connection.execute(select(sessions.id).where(sessions.id == run.session_id).with_for_update())
    earlier = select(_runs.c.id).where(_runs.c.resumes == run.resumes)
    if run.resumes is not None and (started := connection.scalar(earlier)) is not None:
        raise AlreadyStarted(started)
    if key is not None and (started := claimed(connection, run.owner, key, run.run_id, run.started_at)) != run.run_id:
        raise AlreadyStarted(started)


def _answering(run: Run) -> Select[tuple[str]]:
    return select(_runs.c.id).where(_runs.c.status == "running", _runs.c.session_id == run.session_id)


def _free(run: Run, most: int | None) -> Sequence[ColumnElement[bool]]:
    """What must hold where the run starts: none answers in its session, and its owner has fewer than so many."""
    free = [~_answering(run).exists()] if run.session_id is not None else []
    if most is None:
        return free
    own = (_runs.c.status == "running", _runs.c.owner == run.owner, _runs.c.kind == run.kind)
    return [*free, select(func.count()).select_from(_runs).where(*own).scalar_subquery() < most]


def _refuse_answered(connection: Connection, run: Run) -> None:
    if run.session_id is not None and connection.execute(_answering(run)).first() is not None:
        raise Conflict(
            f"the session {run.session_id} is being answered already; wait for that answer, or cancel its run"
        )


def begin(
    connection: Connection,
    run: Run,
    row: Mapping[str, Any],
    session: Session | None,
    messages: Sequence[Message],
    most: int | None,
) -> None:
    """Insert the run's `row`, with `messages` in its session as that was read.

    Raises:
        AlreadyStarted, Conflict, NotFound, TooManyRuns: as `Runs.start` says.
    """
    if session is not None:
        # On a server others wait here, and then find this run.
        try:
            append(connection, run.owner, session.session_id, messages, session.version, run.started_at)
        except Conflict:
            _refuse_answered(connection, run)
            raise
    if not insert_new(connection, _runs, row, *_free(run, most)):
        claim(connection, run, None)  # another one may just have continued the suspended run
        _refuse_answered(connection, run)
        raise TooManyRuns(f"You have {most} runs in progress, and may have no more. Wait for one, or cancel it.")
