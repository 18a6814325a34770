"""The first tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

ID, OWNER, WORD = sa.String(40), sa.String(200), sa.String(20)


def upgrade() -> None:
    _sessions()
    _runs()
    _traces()
    _decisions()
    _access()


def _col(name: str, kind: Any, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=False, **options)


def _null(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=True)


def _sessions() -> None:
    op.create_table(
        "sessions",
        _col("id", ID),
        _col("owner", OWNER),
        _col("title", sa.Text()),
        _null("parent", ID),
        _col("started_at", sa.Double()),
        _col("updated_at", sa.Double()),
        _null("ended_at", sa.Double()),
        _col("version", sa.Integer()),
        _col("length", sa.Integer()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("sessions_by_age", "sessions", ["updated_at", "id"])
    op.create_index("sessions_by_owner", "sessions", ["owner", "updated_at", "id"])
    op.create_index("sessions_by_parent", "sessions", ["parent"])
    op.create_table(
        "messages",
        _col("session_id", ID),
        _col("position", sa.Integer(), autoincrement=False),
        _col("data", sa.Text()),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id", "position"),
    )


def _runs() -> None:
    op.create_table(
        "runs",
        _col("id", ID),
        _col("owner", OWNER),
        _null("session_id", ID),
        _null("trace_id", ID),
        _null("experiment", OWNER),
        _col("status", WORD),
        _col("process", ID),
        _col("started_at", sa.Double()),
        _null("ended_at", sa.Double()),
        _col("cancel_asked", sa.Boolean()),
        _null("error", sa.Text()),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("runs_by_age", "runs", ["started_at"])
    op.create_index("runs_by_session", "runs", ["session_id", "started_at"])
    op.create_index("runs_by_status", "runs", ["status", "process"])
    op.create_table(
        "events",
        _col("run_id", ID),
        _col("first", sa.Integer(), autoincrement=False),
        _col("last", sa.Integer()),
        _col("data", sa.Text()),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "first"),
    )


def _traces() -> None:
    op.create_table(
        "traces",
        _col("id", ID),
        _col("owner", OWNER),
        _col("door", WORD),
        _null("session_id", ID),
        _null("run_id", ID),
        _null("experiment", OWNER),
        _col("model", sa.Text()),
        _col("status", WORD),
        _null("process", ID),
        _col("started_at", sa.Double()),
        _null("completed_at", sa.Double()),
        _col("total_tokens", sa.Integer()),
        _null("cost", sa.Double()),
        _null("error", sa.Text()),
        _col("data", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("traces_by_age", "traces", ["started_at", "id"])
    op.create_index("traces_by_experiment", "traces", ["experiment", "owner", "started_at", "id"])
    op.create_index("traces_by_owner", "traces", ["owner", "started_at", "id"])
    op.create_index("traces_by_session", "traces", ["session_id", "owner", "started_at", "id"])
    op.create_index("traces_by_status", "traces", ["status", "started_at", "id"])
    op.create_index("traces_by_door", "traces", ["door", "started_at", "id"])
    op.create_table(
        "calls",
        _col("trace_id", ID),
        _col("position", sa.Integer(), autoincrement=False),
        _col("result", sa.Text()),
        sa.ForeignKeyConstraint(["trace_id"], ["traces.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("trace_id", "position"),
    )


def _decisions() -> None:
    op.create_table(
        "approvals",
        _col("id", ID),
        _col("owner", OWNER),
        _null("session_id", ID),
        _null("run_id", ID),
        _col("status", WORD),
        _col("asked_at", sa.Double()),
        _col("expires_at", sa.Double()),
        _null("answered_at", sa.Double()),
        _col("data", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("approvals_by_owner", "approvals", ["owner", "status", "asked_at"])
    op.create_index("approvals_by_run", "approvals", ["run_id"])
    op.create_table(
        "grants",
        _col("id", ID),
        _col("owner", OWNER),
        _null("session_id", ID),
        _col("created_at", sa.Double()),
        _null("expires_at", sa.Double()),
        _col("data", sa.Text()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("grants_by_owner", "grants", ["owner", "session_id"])


def _access() -> None:
    op.create_table(
        "keys",
        _col("id", ID),
        _col("owner", OWNER),
        _col("label", sa.Text()),
        _col("digest", sa.String(length=64)),
        _col("operator", sa.Boolean()),
        _col("created_at", sa.Double()),
        _null("revoked_at", sa.Double()),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "processes",
        _col("id", ID),
        _col("place", sa.Text()),
        _col("seen_at", sa.Double()),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "counters",
        _col("name", OWNER),
        _col("level", sa.Double()),
        _col("filled_at", sa.Double()),
        sa.PrimaryKeyConstraint("name"),
    )
