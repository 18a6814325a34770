"""The words of each session, by which users search: folded here, so that both databases compare them alike."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, exists, insert, select, update

from task.conversation.messages import Message, Role, message_from
from task.store import tables
from task.store.records import unpacked

MOST_CHARS = 200_000  # of one session's words: each new message reads them
LONGEST_WORD = 200
AROUND = 60  # characters of a snippet on each side of the word
_WORD = re.compile(r"[\w+#]+")
_sessions, _messages, _words = tables.sessions.c, tables.messages.c, tables.session_words


def reindex(connection: Connection, *session_ids: str) -> None:
    """Write the words of these sessions' titles and messages again."""
    connection.execute(delete(_words).where(_words.c.session_id.in_(session_ids)))
    titles = connection.execute(select(_sessions.id, _sessions.title).where(_sessions.id.in_(session_ids)))
    texts = {row.id: [row.title] for row in titles}
    which = _messages.session_id.in_(session_ids)
    rows = select(_messages.session_id, _messages.data).where(which).order_by(_messages.session_id, _messages.position)
    for row in connection.execute(rows):
        texts[row.session_id] += _texts([message_of(row)])
    if texts:
        found = [{"session_id": name, "words": _joined(_words_in(of_one))} for name, of_one in texts.items()]
        connection.execute(insert(_words), found)


def add_words(connection: Connection, session_id: str, messages: Sequence[Message]) -> None:
    """Add the words of new messages to those of the session."""
    which = _words.c.session_id == session_id
    before = connection.scalar(select(_words.c.words).where(which)) or ""
    found = _joined({**dict.fromkeys(before.split()), **_words_in(_texts(messages))})
    if found != before:
        connection.execute(update(_words).where(which).values(words=found))


def matches(text: str) -> ColumnElement[bool] | None:
    """The sessions whose title and messages contain each word of the text, as a part of a word too; None: any."""
    wanted = sorted(_words_in([text]), key=len, reverse=True)
    if not wanted:
        return None
    contained = (_words.c.words.contains(word, autoescape=True) for word in wanted)
    return exists().where(_words.c.session_id == _sessions.id, *contained)


def snippet(messages: Iterable[Message], text: str) -> str:
    """The place in the messages where the text's words are found first; empty where they stand in the title only."""
    wanted = list(_words_in([text]))
    for written in _texts(messages):
        plain = unicodedata.normalize("NFKC", written)
        for word in _WORD.finditer(plain):
            if any(part in word[0].casefold() for part in wanted):
                first, last = max(0, word.start() - AROUND), min(len(plain), word.end() + AROUND)
                inside = " ".join(plain[first:last].split())
                return f"{'…' if first else ''}{inside}{'…' if last < len(plain) else ''}"
    return ""


def message_of(row: Row[*tuple[Any, ...]]) -> Message:
    """The stored message of a row."""
    return message_from(unpacked(row.data))


def _texts(messages: Iterable[Message]) -> Iterator[str]:
    return (message.text() for message in messages if message.role in (Role.USER, Role.ASSISTANT))


def _words_in(texts: Iterable[str]) -> dict[str, None]:
    found: dict[str, None] = {}
    for text in texts:
        folded = unicodedata.normalize("NFKC", text).casefold().encode("utf-8", "replace").decode()
        found.update(dict.fromkeys(word[:LONGEST_WORD] for word in _WORD.findall(folded)))
    return found


def _joined(words: Iterable[str]) -> str:
    return " ".join(words)[:MOST_CHARS]
