"""The tables of the store. Times are seconds since 1970 in UTC; JSON is text, written and read by orjson."""

from typing import Any

from sqlalchemy import Boolean, Column, Double, ForeignKey, Index, Integer, MetaData, String, Table, Text, false, text

HEAD = "0015"  # the newest migration in `task/store/migrations/versions`, which leads to these tables
metadata = MetaData()

ID = String(40)
OWNER = String(200)
WORD = String(20)  # of a closed set, such as a status


def _table(name: str, *parts: Column[Any] | list[Column[Any]] | Index, **options: Any) -> Table:
    columns = [column for part in parts for column in (part if isinstance(part, list) else [part])]
    return Table(name, metadata, *columns, **options)


def _required(kind: Any, *names: str, **options: Any) -> list[Column[Any]]:
    return [Column(name, kind, nullable=False, **options) for name in names]


def _optional(kind: Any, *names: str) -> list[Column[Any]]:
    return [Column(name, kind) for name in names]


def _key(name: str = "id", kind: Any = ID) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _part_of(column: str) -> Column[Any]:
    """The first part of a key: the id of the row to which this one belongs."""
    table = column.partition(".")[0]
    return Column(f"{table[:-1]}_id", ID, ForeignKey(column, ondelete="CASCADE"), primary_key=True)


sessions = _table(
    "sessions",
    _key(),
    _required(OWNER, "owner"),
    _required(Text, "title", default=""),
    _optional(ID, "parent"),
    _required(Double, "started_at", "updated_at"),
    _optional(Double, "ended_at"),
    _required(Integer, "version", "length", default=0),
    _required(ID, "family", server_default=""),  # the first conversation of those that branched off it
    _required(Integer, "fork", server_default="0"),  # the messages that it has in common with its parent
    _required(WORD, "origin", default="page", server_default="page"),
    _required(Boolean, "pinned", default=False, server_default=false()),
    Index("sessions_by_family", "family", "updated_at"),
    Index("sessions_by_owner", "owner", "updated_at", "id"),
    Index("sessions_by_age", "updated_at", "id"),
    Index("sessions_by_parent", "parent"),
)

messages = _table("messages", _part_of("sessions.id"), _key("position", Integer), _required(Text, "data"))

# Distinct words, folded, of title and messages: a session is found in them, whatever their language.
session_words = _table("session_words", _part_of("sessions.id"), _required(Text, "words"))

runs = _table(
    "runs",
    _key(),
    _required(OWNER, "owner"),
    _required(WORD, "kind", default="answer", server_default="answer"),
    _optional(Text, "folder", "error", "added"),  # a coding task works in its folder
    Column("session_id", ID, ForeignKey("sessions.id", ondelete="CASCADE")),
    _optional(ID, "trace_id", "resumes"),
    _optional(OWNER, "experiment"),
    _required(WORD, "status"),
    _required(ID, "process"),
    _required(Double, "started_at"),
    _optional(Double, "ended_at", "heard_at"),
    _required(Boolean, "cancel_asked", default=False),
    Index("runs_by_resumed", "resumes", unique=True),  # a suspended run is continued once
    Index("runs_by_session", "session_id", "started_at"),
    Index("runs_by_status", "status", "process"),
    Index("runs_by_age", "started_at"),
)

# One row holds the events of a short while: a row for every piece of text would cost more than the text.
events = _table(
    "events", _part_of("runs.id"), _key("first", Integer), _required(Integer, "last"), _required(Text, "data")
)

traces = _table(
    "traces",
    _key(),
    _required(OWNER, "owner"),
    _required(WORD, "door", "status"),
    _optional(ID, "session_id", "run_id", "process"),
    _optional(OWNER, "experiment"),
    _required(Text, "model", "data"),
    _required(Double, "started_at"),
    _optional(Double, "completed_at", "cost"),
    _required(Integer, "total_tokens"),
    _optional(Text, "error", "comment"),
    _optional(String(80), "response_id"),
    _optional(String(4), "rating"),
    Index("traces_by_owner", "owner", "started_at", "id"),
    Index("traces_by_age", "started_at", "id"),
    Index("traces_by_session", "session_id", "owner", "started_at", "id"),
    Index("traces_by_experiment", "experiment", "owner", "started_at", "id"),
    Index("traces_by_status", "status", "started_at", "id"),
    Index("traces_by_door", "door", "started_at", "id"),
    Index("traces_by_model", "model", "started_at", "id"),
    Index("traces_by_rating", "rating", "owner", "started_at", "id"),
    Index("traces_by_run", "run_id"),
    Index("traces_by_response", "response_id"),
)

# What filters look for in a trace, beside it, because its own row is long. `tools` are names between spaces; `text`,
# in lower case, is what was asked and answered, and empty where contents are not kept.
trace_words = _table("trace_words", _part_of("traces.id"), _required(Text, "tools", "text"), sqlite_with_rowid=False)

calls = _table("calls", _part_of("traces.id"), _key("position", Integer), _required(Text, "result"))

_OPEN = text("status = 'waiting' AND code <> ''")
approvals = _table(
    "approvals",
    _key(),
    _required(OWNER, "owner"),
    _optional(ID, "session_id", "run_id"),
    _required(WORD, "status"),
    _required(Double, "asked_at", "expires_at"),
    _optional(Double, "answered_at"),
    _required(String(8), "code", server_default=""),
    _required(Text, "data"),
    Index("approvals_by_code", "owner", "code", unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index("approvals_by_owner", "owner", "status", "asked_at"),
    Index("approvals_by_run", "run_id"),
)

# What clients call their requests, for as long as they may send them again.
request_keys = _table(
    "request_keys",
    _key("owner", OWNER),
    _key("name", String(255)),
    _required(String(64), "digest"),
    _required(ID, "run_id"),
    _required(Double, "created_at"),
    Index("request_keys_by_age", "created_at"),
)

grants = _table(
    "grants",
    _key(),
    _required(OWNER, "owner"),
    _optional(ID, "session_id"),
    _required(Double, "created_at"),
    _optional(Double, "expires_at"),
    _required(Text, "data"),
    Index("grants_by_owner", "owner", "session_id"),
)

prompts = _table("prompts", _key("owner", OWNER), _key("name", String(60)), _required(Text, "text"))

keys = _table(
    "keys",
    _key(),
    _required(OWNER, "owner"),
    _required(Text, "label"),
    _required(String(64), "digest", unique=True),
    _required(Boolean, "operator"),
    _required(Double, "created_at"),
    _optional(Double, "revoked_at"),
)

# `tables_version` is the `HEAD` of the process, `secret` the fingerprint of that with which it seals hidden state.
processes = _table(
    "processes",
    _key(),
    _required(Text, "place"),
    _required(Double, "seen_at"),
    _optional(WORD, "tables_version"),
    _optional(String(32), "secret"),
)

# Sealed or signed with the installation's secret: users' tokens at MCP servers by their names, and users' memories.
sealed_texts = _table("sealed_texts", _key("owner", OWNER), _key("name", OWNER), _required(Text, "data"))

# Of a rate limit the time at which its bucket is full again, of a chore the time from which it is due.
counters = _table("counters", _key("name", OWNER), _required(Double, "ready_at"))
