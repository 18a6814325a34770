"""Sessions, their messages and the versions of those in their branches, each visible to its owner only."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, and_, delete, exists, insert, select, tuple_, update

from task.conversation.merging import merged
from task.conversation.messages import Message
from task.errors import Conflict, NotFound
from task.store import tables
from task.store.database import Database, from_row, insert_new, to_row
from task.store.records import Origin, Page, Run, Session, SessionFilter, Versions, new_id, packed, short_title
from task.store.search import add_words, matches, message_of, reindex, snippet

MOST_BRANCHES = 20
MOST_SESSIONS = 200  # of one family that are looked at, the last used first
_sessions, _messages = tables.sessions, tables.messages


@dataclass(frozen=True, slots=True)
class Sessions:
    """The sessions of the store. Every method raises `NotFound` for a session that the owner does not have."""

    database: Database
    clock: Callable[[], float]

    async def start(self, owner: str, title: str = "", origin: Origin = "api") -> Session:
        made = Session(new_id("sess"), owner, now := self.clock(), now, title=short_title(title), origin=origin)
        return await self.database.write(lambda connection: _insert(connection, made))

    async def get(self, owner: str, session_id: str, *, traces: bool = True) -> Session:
        """The session with its messages and, unless they are left out, the ids of its traces, both oldest first."""
        return await self.database.read(lambda connection: _load(connection, owner, session_id, traces=traces))

    async def list(
        self, owner: str, limit: int = 50, cursor: str | None = None, which: SessionFilter | None = None
    ) -> Page[Session]:
        """The owner's sessions, the last used first, without their messages; a search finds them with a snippet."""
        which, own = which or SessionFilter(), _sessions.c
        query = select(_sessions).where(own.owner == owner)
        if which.origins is not None:
            query = query.where(own.origin.in_(which.origins))
        if which.pinned is not None:
            query = query.where(own.pinned == which.pinned)
        if which.families and not which.text:
            other = _sessions.alias().c
            later = tuple_(other.updated_at, other.id) > tuple_(own.updated_at, own.id)
            query = query.where(~exists().where(other.family == own.family, other.owner == own.owner, later))
        if which.text and (found := matches(which.text)) is not None:
            query = query.where(found)
        page = await self.database.page(query, own.updated_at, limit, cursor, _session)
        if not which.text:
            return page
        shown = _messages.c.session_id.in_([item.session_id for item in page.items])
        rows = select(_messages).where(shown).order_by(_messages.c.session_id, _messages.c.position)
        snippets = {
            session_id: snippet(map(message_of, of_one), which.text)
            for session_id, of_one in groupby(await self.database.rows(rows), lambda row: row.session_id)
        }
        return replace(
            page, items=tuple(replace(item, snippet=snippets.get(item.session_id, "")) for item in page.items)
        )

    async def end(self, owner: str, session_id: str) -> Session:
        """End the session; ending it again changes nothing."""
        now = self.clock()

        def work(connection: Connection) -> Session:
            row = _row_of(connection, owner, session_id)
            if row.ended_at is None:
                ended = update(_sessions).where(_sessions.c.id == session_id)
                connection.execute(ended.values(ended_at=now, updated_at=now, version=row.version + 1))
            return _load(connection, owner, session_id)

        return await self.database.write(work)

    async def rename(self, owner: str, session_id: str, title: str, instead_of: str | None = None) -> None:
        """Give the session and its family another title; with `instead_of` only those that still have that one."""
        titled = [_sessions.c.title == short_title(instead_of)] if instead_of is not None else []

        def work(connection: Connection) -> None:
            family = _row_of(connection, owner, session_id).family
            which = update(_sessions).where(_sessions.c.family == family, _sessions.c.owner == owner, *titled)
            renamed = connection.execute(which.values(title=short_title(title)).returning(_sessions.c.id)).all()
            reindex(connection, *(row.id for row in renamed))

        await self.database.write(work)

    async def pin(self, owner: str, session_id: str, pinned: bool) -> None:
        """Pin the session and its family, or unpin them."""
        which = update(_sessions).where(_chosen(owner, [session_id], families=True))
        if not await self.database.execute(which.values(pinned=pinned)):
            raise _not_found(session_id)

    async def delete(self, owner: str, session_id: str) -> None:
        """Remove the session with its messages, runs, traces, approvals and grants."""
        if not await self.delete_all(owner, [session_id]):
            raise _not_found(session_id)

    async def delete_all(self, owner: str, session_ids: Sequence[str], families: bool = False) -> int:
        """Remove those of the sessions, or of their families, that the owner has; how many there were."""
        which = _chosen(owner, session_ids, families)
        return await self.database.write(lambda connection: remove(connection, which))

    async def answering(self, owner: str, session_ids: Sequence[str], families: bool = False) -> tuple[str, ...]:
        """Those of the sessions, or of their families, in which a run is in progress."""
        runs, chosen = tables.runs.c, select(_sessions.c.id).where(_chosen(owner, session_ids, families))
        query = select(runs.session_id).where(runs.status == "running", runs.session_id.in_(chosen)).distinct()
        return tuple(row.session_id for row in await self.database.rows(query))

    async def remove_run(self, run: Run, first: int, end: int | None) -> None:
        """Remove a run of a session with its events and trace.

        The messages from `first` on are removed where none follow them, that is where the session ends at `end`.
        With its last run the whole session is removed.
        """
        now, columns, runs = self.clock(), _sessions.c, tables.runs.c

        def work(connection: Connection) -> None:
            if run.session_id is not None:
                shorten(connection, run.session_id, first, now, columns.length == end)
            connection.execute(delete(tables.traces).where(tables.traces.c.id == run.trace_id))
            connection.execute(delete(tables.approvals).where(tables.approvals.c.run_id == run.run_id))
            connection.execute(delete(tables.runs).where(runs.id == run.run_id))
            if connection.execute(select(runs.id).where(runs.session_id == run.session_id).limit(1)).first() is None:
                remove(connection, columns.id == run.session_id)

        await self.database.write(work)

    async def append(self, owner: str, session_id: str, messages: Sequence[Message], version: int) -> int:
        """Add messages to the session as it was at `version`; the version it has now.

        Raises:
            Conflict: another request has changed the session since, or the session has ended.
        """
        now = self.clock()

        def work(connection: Connection) -> int:
            added = append(connection, owner, session_id, messages, version, now)
            add_words(connection, session_id, messages)
            return added

        return await self.database.write(work)

    async def branch(self, owner: str, session_id: str, keep: int) -> Session:
        """A new session that starts with the first `keep` messages of this one."""
        now = self.clock()

        def work(connection: Connection) -> Session:
            row = _row_of(connection, owner, session_id)
            kept = messages_of(connection, session_id)[:keep]
            about = {"title": row.title, "family": row.family, "origin": row.origin, "pinned": row.pinned}
            made = Session(new_id("sess"), owner, now, now, parent=session_id, fork=len(kept), **about)
            made = _insert(connection, made)
            append(connection, owner, made.session_id, kept, made.version, now)
            add_words(connection, made.session_id, kept)
            return _load(connection, owner, made.session_id)

        return await self.database.write(work)

    async def versions(self, owner: str, session_id: str) -> tuple[str, tuple[Versions, ...]]:
        """The session's family, and where its branches have other messages than this session."""

        def work(connection: Connection) -> tuple[str, tuple[Versions, ...]]:
            family = _row_of(connection, owner, session_id).family
            return family, versions_of(connection, owner, family, session_id)

        return await self.database.read(work)

    async def resume(self, session: Session, sent: Sequence[Message]) -> tuple[Session, tuple[Message, ...]]:
        """The session, or the branch of it, that the client's messages continue, and those that the client has added.

        Where they continue none of them, a branch is made from the one that shares most with them.
        """
        fit = merged(session.messages, sent)
        if not fit.branched:
            return session, fit.new
        # The client may have gone on with a branch whose id it never saw.
        own = _sessions.c
        last_used = select(own.id).where(own.parent == session.session_id).order_by(own.updated_at.desc())
        for row in await self.database.rows(last_used.limit(MOST_BRANCHES)):
            branch = await self.get(session.owner, row.id)
            other = merged(branch.messages, sent)
            if not other.branched and branch.ended_at is None:
                return branch, other.new
            if other.kept > fit.kept:
                session, fit = branch, other
        return await self.branch(session.owner, session.session_id, fit.kept), fit.new


def messages_of(connection: Connection, session_id: str) -> tuple[Message, ...]:
    """The session's messages, oldest first."""
    query = select(_messages.c.data).where(_messages.c.session_id == session_id).order_by(_messages.c.position)
    return tuple(map(message_of, connection.execute(query)))


def append(
    connection: Connection, owner: str, session_id: str, messages: Sequence[Message], version: int, now: float
) -> int:
    """Add messages to the session as it was at `version`; the version it has now. Raises `Conflict` and `NotFound`."""
    columns = _sessions.c
    current = (columns.owner == owner, columns.version == version, columns.ended_at.is_(None))
    if add_messages(connection, session_id, messages, now, *current):
        return version + 1
    if _row_of(connection, owner, session_id).ended_at is not None:
        raise Conflict(f"the session {session_id} has ended; start a new one")
    raise Conflict(f"the session {session_id} was changed by another request; read it and try again")


def remove(connection: Connection, which: ColumnElement[bool]) -> int:
    """Remove sessions with all that belongs to them; how many there were."""
    gone = select(_sessions.c.id).where(which)
    for table in (tables.traces, tables.approvals, tables.grants):
        connection.execute(delete(table).where(table.c.session_id.in_(gone)))
    return connection.execute(delete(_sessions).where(which)).rowcount


def add_messages(
    connection: Connection, session_id: str, messages: Sequence[Message], now: float, *current: ColumnElement[bool]
) -> bool:
    """Add messages to the session if it is there and these conditions hold; whether they do.

    Their words are added apart, once for each turn.
    """
    columns = _sessions.c
    grown = update(_sessions).where(columns.id == session_id, *current).returning(columns.length)
    values = {"version": columns.version + 1, "updated_at": now, "length": columns.length + len(messages)}
    row = connection.execute(grown.values(values)).first()
    if row is None:
        return False
    rows = [
        {"session_id": session_id, "position": number, "data": packed(message.as_stored())}
        for number, message in enumerate(messages, row.length - len(messages))
    ]
    if rows:
        connection.execute(insert(_messages), rows)
    return True


def shorten(connection: Connection, session_id: str, length: int, now: float, *current: ColumnElement[bool]) -> None:
    """Remove the session's messages from that number on, if these conditions hold."""
    columns = _sessions.c
    shorter = update(_sessions).where(columns.id == session_id, *current)
    values = {"version": columns.version + 1, "updated_at": now, "length": length}
    if connection.execute(shorter.values(values)).rowcount:
        rest = (_messages.c.session_id == session_id, _messages.c.position >= length)
        connection.execute(delete(_messages).where(*rest))
        reindex(connection, session_id)


def _insert(connection: Connection, made: Session) -> Session:
    while True:
        made = replace(made, family=made.family if made.parent else made.session_id)
        if insert_new(connection, _sessions, to_row(_sessions, made, id=made.session_id)):
            reindex(connection, made.session_id)
            return made
        made = replace(made, session_id=new_id("sess"))  # ids are short


def _chosen(owner: str, session_ids: Sequence[str], families: bool) -> ColumnElement[bool]:
    own = and_(_sessions.c.owner == owner, _sessions.c.id.in_(session_ids))
    if not families:
        return own
    inner = _sessions.alias()
    named = select(inner.c.family).where(inner.c.owner == owner, inner.c.id.in_(session_ids))
    return and_(_sessions.c.owner == owner, _sessions.c.family.in_(named))


def _row_of(connection: Connection, owner: str, session_id: str) -> Row[Any]:
    query = select(_sessions).where(_sessions.c.id == session_id, _sessions.c.owner == owner)
    row = connection.execute(query).first()
    if row is None:
        raise _not_found(session_id)
    return row


def _not_found(session_id: str) -> NotFound:
    return NotFound(f"there is no session {session_id!r}")


def _load(connection: Connection, owner: str, session_id: str, *, traces: bool = True) -> Session:
    row, columns = _row_of(connection, owner, session_id), tables.traces.c
    query = select(columns.id).where(columns.session_id == session_id).order_by(columns.started_at, columns.id)
    ids = tuple(connection.scalars(query)) if traces else ()
    return _session(row, messages=messages_of(connection, session_id), traces=ids)


def _session(row: Row[Any], **more: Any) -> Session:
    return from_row(Session, row, session_id=row.id, **more)


def versions_of(connection: Connection, owner: str, family: str, session_id: str) -> tuple[Versions, ...]:
    """The versions of this session's messages in its family, in the order of the messages."""
    columns = _sessions.c
    family_of_owner = select(_sessions).where(columns.family == family, columns.owner == owner)
    which = family_of_owner.order_by(columns.updated_at.desc())
    relatives = {row.id: row for row in connection.execute(which.limit(MOST_SESSIONS))}  # a parent may be gone
    if len(relatives) < 2 or session_id not in relatives:
        return ()
    forks = {relative.fork for relative in relatives.values()}
    at_forks = select(_messages).where(_messages.c.session_id.in_(relatives), _messages.c.position.in_(forks))
    texts = {(row.session_id, row.position): row.data for row in connection.execute(at_forks)}
    found = list[Versions]()
    for fork in sorted(forks):
        if (session_id, fork) not in texts:  # this session ends before, or was cut there
            continue
        before = _origin(session_id, fork - 1, relatives)
        branches = dict[str, list[Row[Any]]]()  # those of one origin continue together beyond the fork
        for name, relative in relatives.items():
            if (name, fork) in texts and _origin(name, fork - 1, relatives) == before:
                branches.setdefault(_origin(name, fork, relatives), []).append(relative)
        questions = dict[str, list[Row[Any]]]()
        for branch in branches.values():
            questions.setdefault(texts[branch[0].id, fork], []).extend(branch)
        answers = questions[texts[session_id, fork]]
        same = [branch for branch in branches.values() if branch[0] in answers]
        made = (_ordered(fork, session_id, questions.values()), _ordered(fork + 1, session_id, same))
        found += [each for each in made if len(each.sessions) > 1]
    return tuple(found)


def _origin(session_id: str, position: int, relatives: Mapping[str, Row[Any]]) -> str:
    # The session in which the message was written: this one, or one above it. Of -1 it is the topmost.
    name = session_id
    while (relative := relatives.get(name)) is not None and relative.parent is not None and position < relative.fork:
        name = relative.parent
    return name


def _ordered(position: int, own: str, choices: Collection[Sequence[Row[Any]]]) -> Versions:
    oldest_first = sorted(choices, key=lambda choice: min((each.started_at, each.id) for each in choice))
    newest = (max(choice, key=lambda each: (each.updated_at, each.id)).id for choice in oldest_first)
    shown = next(place for place, choice in enumerate(oldest_first) if own in {each.id for each in choice})
    return Versions(position, tuple(newest), shown)
