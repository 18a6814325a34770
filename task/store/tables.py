"""The tables of the store. Times are seconds since 1970 in UTC; JSON is text, written and read by orjson."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Column, Double, ForeignKey, Index, Integer, MetaData, String, Table, Text, false, text

HEAD = "0012"  # the newest migration in `task/store/migrations/versions`, which leads to these tables
metadata = MetaData()

ID = String(40)
OWNER = String(200)


def _table(name: str, *parts: Column[Any] | Index, **options: Any) -> Table:
    return Table(name, metadata, *parts, **options)


def _parent(column: str) -> ForeignKey:
    return ForeignKey(column, ondelete="CASCADE")


sessions = _table(
    "sessions",
    Column("id", ID, primary_key=True),
    Column("owner", OWNER, nullable=False),
    Column("title", Text, nullable=False, default=""),
    Column("parent", ID),
    Column("started_at", Double, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("version", Integer, nullable=False, default=0),
    Column("length", Integer, nullable=False, default=0),
    Column("family", ID, nullable=False, server_default=""),  # the first conversation of those that branched off it
    Column("fork", Integer, nullable=False, server_default="0"),  # the messages that it has in common with its parent
    Column("origin", String(20), nullable=False, default="page", server_default="page"),
    Column("pinned", Boolean, nullable=False, default=False, server_default=false()),
    Index("sessions_by_family", "family", "updated_at"),
    Index("sessions_by_owner", "owner", "updated_at", "id"),
    Index("sessions_by_age", "updated_at", "id"),
    Index("sessions_by_parent", "parent"),
)

messages = _table(
    "messages",
    Column("session_id", ID, _parent("sessions.id"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("data", Text, nullable=False),
)

# Distinct words, folded, of title and messages: a session is found in them, whatever their language.
session_words = _table(
    "session_words",
    Column("session_id", ID, _parent("sessions.id"), primary_key=True),
    Column("words", Text, nullable=False),
)

runs = _table(
    "runs",
    Column("id", ID, primary_key=True),
    Column("owner", OWNER, nullable=False),
    Column("kind", String(20), nullable=False, default="answer", server_default="answer"),
    Column("folder", Text),  # in which a coding task works
    Column("session_id", ID, _parent("sessions.id")),
    Column("trace_id", ID),
    Column("experiment", OWNER),
    Column("status", String(20), nullable=False),
    Column("process", ID, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("cancel_asked", Boolean, nullable=False, default=False),
    Column("heard_at", Double),
    Column("error", Text),
    Column("resumes", ID),
    Column("added", Text),
    Index("runs_by_resumed", "resumes", unique=True),  # a suspended run is continued once
    Index("runs_by_session", "session_id", "started_at"),
    Index("runs_by_status", "status", "process"),
    Index("runs_by_age", "started_at"),
)

# One row holds the events of a short while: a row for every piece of text would cost more than the text.
events = _table(
    "events",
    Column("run_id", ID, _parent("runs.id"), primary_key=True),
    Column("first", Integer, primary_key=True, autoincrement=False),
    Column("last", Integer, nullable=False),
    Column("data", Text, nullable=False),
)

traces = _table(
    "traces",
    Column("id", ID, primary_key=True),
    Column("owner", OWNER, nullable=False),
    Column("door", String(20), nullable=False),
    Column("session_id", ID),
    Column("run_id", ID),
    Column("experiment", OWNER),
    Column("model", Text, nullable=False),
    Column("status", String(20), nullable=False),
    Column("process", ID),
    Column("started_at", Double, nullable=False),
    Column("completed_at", Double),
    Column("total_tokens", Integer, nullable=False),
    Column("cost", Double),
    Column("error", Text),
    Column("data", Text, nullable=False),
    Column("response_id", String(80)),
    Column("rating", String(4)),
    Column("comment", Text),
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
trace_words = _table(
    "trace_words",
    Column("trace_id", ID, _parent("traces.id"), primary_key=True),
    Column("tools", Text, nullable=False),
    Column("text", Text, nullable=False),
    sqlite_with_rowid=False,
)

calls = _table(
    "calls",
    Column("trace_id", ID, _parent("traces.id"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),
    Column("result", Text, nullable=False),
)

_OPEN = text("status = 'waiting' AND code <> ''")
approvals = _table(
    "approvals",
    Column("id", ID, primary_key=True),
    Column("owner", OWNER, nullable=False),
    Column("session_id", ID),
    Column("run_id", ID),
    Column("status", String(20), nullable=False),
    Column("asked_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("answered_at", Double),
    Column("code", String(8), nullable=False, server_default=""),
    Column("data", Text, nullable=False),
    Index("approvals_by_code", "owner", "code", unique=True, sqlite_where=_OPEN, postgresql_where=_OPEN),
    Index("approvals_by_owner", "owner", "status", "asked_at"),
    Index("approvals_by_run", "run_id"),
)

# What clients call their requests, for as long as they may send them again.
request_keys = _table(
    "request_keys",
    Column("owner", OWNER, primary_key=True),
    Column("name", String(255), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("run_id", ID, nullable=False),
    Column("created_at", Double, nullable=False),
    Index("request_keys_by_age", "created_at"),
)

grants = _table(
    "grants",
    Column("id", ID, primary_key=True),
    Column("owner", OWNER, nullable=False),
    Column("session_id", ID),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("data", Text, nullable=False),
    Index("grants_by_owner", "owner", "session_id"),
)

prompts = _table(
    "prompts",
    Column("owner", OWNER, primary_key=True),
    Column("name", String(60), primary_key=True),
    Column("text", Text, nullable=False),
)

keys = _table(
    "keys",
    Column("id", ID, primary_key=True),
    Column("owner", OWNER, nullable=False),
    Column("label", Text, nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("operator", Boolean, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("revoked_at", Double),
)

processes = _table(
    "processes",
    Column("id", ID, primary_key=True),
    Column("place", Text, nullable=False),
    Column("seen_at", Double, nullable=False),
    Column("tables_version", String(20)),  # the `HEAD` of the process
    Column("secret", String(32)),  # the fingerprint of the secret with which it seals hidden state
)

counters = _table(
    "counters",
    Column("name", OWNER, primary_key=True),
    Column("level", Double, nullable=False),
    Column("filled_at", Double, nullable=False),
)
