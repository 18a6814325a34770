"""Turns of conversations that callers keep themselves."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "turns",
        sa.Column("id", sa.String(64), nullable=False),
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("session_id", sa.String(40), nullable=True),
        sa.Column("kept_at", sa.Double(), nullable=False),
        sa.Column("data", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("turns_by_age", "turns", ["kept_at", "id"])
    op.create_index("turns_by_session", "turns", ["session_id"])
