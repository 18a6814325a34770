"""The versions of a conversation's messages: where its branches fork, and which of them shows which version."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
    relatives = [Relative(*row) for row in connection.execute(which.limit(MOST_SESSIONS))]
    if len(relatives) < 2:
        return ()
    forks = {relative.fork for relative in relatives}
    ids = [relative.session_id for relative in relatives]
    texts = select(_messages).where(_messages.c.session_id.in_(ids), _messages.c.position.in_(forks))
    rows = connection.execute(texts)
    return Family(relatives, {(row.session_id, row.position): row.data for row in rows}).versions_of(session_id)


class Family:
    """Sessions that branched off each other, the last used first; `texts` has the messages at their forks."""

    def __init__(self, relatives: Sequence[Relative], texts: Mapping[tuple[str, int], str]) -> None:
        self._relatives, self._texts = relatives, texts
        known = {each.session_id: each for each in relatives}
        # How many messages each session has in common with each one above it, the nearest first.
        self._shared: dict[str, dict[str, float]] = {}
        for each in relatives:
            above, limit, current = {each.session_id: math.inf}, math.inf, known.get(each.session_id)
            while current is not None and current.parent is not None and current.parent not in above:
                limit = min(limit, current.fork)
                above[current.parent] = limit
                current = known.get(current.parent)
            self._shared[each.session_id] = above

    def versions_of(self, own: str) -> tuple[Versions, ...]:
        """The versions of the messages of one of the sessions, in their order."""
        found = list[Versions]()
        others = [each.session_id for each in self._relatives if each.session_id != own]
        for fork in sorted({self._common(own, other) for other in others} - {-1} if own in self._shared else ()):
            alike = [each for each in self._relatives if self._common(own, each.session_id) >= fork]
            there = [each for each in alike if (each.session_id, fork) in self._texts]
            if _has(there, own):
                found += self._at(int(fork), own, there)
        return tuple(found)

    def _at(self, fork: int, own: str, there: Sequence[Relative]) -> list[Versions]:
        branches = list[list[Relative]]()  # those in one list continue together beyond the fork
        for each in there:
            same = (one for one in branches if self._common(one[0].session_id, each.session_id) > fork)
            if (branch := next(same, None)) is not None:
                branch.append(each)
            else:
                branches.append([each])
        questions = dict[str, list[Relative]]()
        for branch in branches:
            questions.setdefault(self._texts[branch[0].session_id, fork], []).extend(branch)
        asked = next(text for text, having in questions.items() if _has(having, own))
        answers = [branch for branch in branches if self._texts[branch[0].session_id, fork] == asked]
        made = (_ordered(fork, own, list(questions.values())), _ordered(fork + 1, own, answers))
        return [each for each in made if len(each.sessions) > 1]

    def _common(self, one: str, other: str) -> float:
        above = self._shared[other]
        return next((min(limit, above[name]) for name, limit in self._shared[one].items() if name in above), -1)


def _ordered(position: int, own: str, choices: Sequence[Sequence[Relative]]) -> Versions:
    oldest_first = sorted(choices, key=lambda choice: min((each.started_at, each.session_id) for each in choice))
    newest = (max(choice, key=lambda each: (each.updated_at, each.session_id)).session_id for choice in oldest_first)
    shown = next(place for place, choice in enumerate(oldest_first) if _has(choice, own))
    return Versions(position, tuple(newest), shown)


def _has(choice: Sequence[Relative], session_id: str) -> bool:
    return any(each.session_id == session_id for each in choice)
