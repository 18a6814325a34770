"""Ratings of answers, and what filters look for in traces."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0006"
branch_labels = None
depends_on = None

AT_ONCE, SEARCHED = 500, 2000


def upgrade() -> None:
    op.add_column("traces", sa.Column("response_id", sa.String(80), nullable=True))
    op.add_column("traces", sa.Column("rating", sa.String(4), nullable=True))
    op.add_column("traces", sa.Column("comment", sa.Text(), nullable=True))
    op.create_index("traces_by_model", "traces", ["model", "started_at", "id"])
    op.create_index("traces_by_rating", "traces", ["rating", "owner", "started_at", "id"])
    op.create_index("traces_by_run", "traces", ["run_id"])
    op.create_index("traces_by_response", "traces", ["response_id"])
    op.create_table(
        "trace_words",
        sa.Column("trace_id", sa.String(40), nullable=False),
        sa.Column("tools", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["trace_id"], ["traces.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("trace_id"),
        sqlite_with_rowid=False,
    )
    _fill()


def _fill() -> None:
    traces = sa.table("traces", sa.column("id", sa.String), sa.column("data", sa.Text))
    words = sa.table(
        "trace_words", sa.column("trace_id", sa.String), sa.column("tools", sa.Text), sa.column("text", sa.Text)
    )
    connection, last = op.get_bind(), ""
    next_rows = sa.select(traces).where(traces.c.id > sa.bindparam("last")).order_by(traces.c.id).limit(AT_ONCE)
    while rows := connection.execute(next_rows, {"last": last}).all():
        connection.execute(sa.insert(words), [_words(row.id, json.loads(row.data)) for row in rows])
        last = rows[-1].id


def _words(trace_id: str, data: Mapping[str, Any]) -> dict[str, str]:
    tools = sorted({call["name"] for call in data["calls"]})
    asked, added = data["turns"][: data["asked"]], data["turns"][data["asked"] :]
    texts = (_text(asked[::-1], "user"), _text(added[::-1], "assistant"))
    return {"trace_id": trace_id, "tools": f" {' '.join(tools)} ", "text": "\n".join(texts).lower()}


def _text(turns: list[Mapping[str, Any]], role: str) -> str:
    contents = (turn["content"] for turn in turns if turn["role"] == role)
    return next((text[:SEARCHED] for text in contents if isinstance(text, str) and text), "").replace("\0", " ")
