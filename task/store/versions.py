"""The versions of a conversation's messages: where its branches fork, and which of them shows which version."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, select

from task.store import tables

MOST_SESSIONS = 200  # of one family that are looked at, the last used first
_sessions, _messages = tables.sessions, tables.messages


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions of the message at `position`, oldest first, each by the session that was last used of those that
    have it; `shown` is the place of the version that this session has."""

    position: int
    sessions: tuple[str, ...]
    shown: int


@dataclass(frozen=True, slots=True)
class Relative:
    """A session of the family; `parent` may have been deleted."""

    session_id: str
    parent: str | None
    fork: int
    started_at: float
    updated_at: float


def versions_of(connection: Connection, owner: str, family: str, session_id: str) -> tuple[Versions, ...]:
    """The versions of this session's messages in its family, in the order of the messages."""
    columns = _sessions.c
    query = select(columns.id, columns.parent, columns.fork, columns.started_at, columns.updated_at)
    which = query.where(columns.family == family, columns.owner == owner).order_by(columns.updated_at.desc())
    relatives = {row.id: Relative(*row) for row in connection.execute(which.limit(MOST_SESSIONS))}
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
        branches = dict[str, list[Relative]]()  # those of one origin continue together beyond the fork
        for name, relative in relatives.items():
            if (name, fork) in texts and _origin(name, fork - 1, relatives) == before:
                branches.setdefault(_origin(name, fork, relatives), []).append(relative)
        questions = dict[str, list[Relative]]()
        for branch in branches.values():
            questions.setdefault(texts[branch[0].session_id, fork], []).extend(branch)
        answers = questions[texts[session_id, fork]]
        same = [branch for branch in branches.values() if branch[0] in answers]
        made = (_ordered(fork, session_id, questions.values()), _ordered(fork + 1, session_id, same))
        found += [each for each in made if len(each.sessions) > 1]
    return tuple(found)


def _origin(session_id: str, position: int, relatives: Mapping[str, Relative]) -> str:
    # The session in which the message was written: this one, or one above it. Of -1 it is the topmost.
    name = session_id
    while (relative := relatives.get(name)) is not None and relative.parent is not None and position < relative.fork:
        name = relative.parent
    return name


def _ordered(position: int, own: str, choices: Collection[Sequence[Relative]]) -> Versions:
    oldest_first = sorted(choices, key=lambda choice: min((each.started_at, each.session_id) for each in choice))
    newest = (max(choice, key=lambda each: (each.updated_at, each.session_id)).session_id for choice in oldest_first)
    shown = next(place for place, choice in enumerate(oldest_first) if own in {each.session_id for each in choice})
    return Versions(position, tuple(newest), shown)
