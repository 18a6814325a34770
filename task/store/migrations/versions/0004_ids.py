"""Ids in place of comparisons: what a run resumes, the codes of questions, the names of requests; `turns` goes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("runs", sa.Column("resumes", sa.String(40), nullable=True))
    op.add_column("runs", sa.Column("added", sa.Text(), nullable=True))
    op.create_index("runs_by_resumed", "runs", ["resumes"], unique=True)
    op.add_column("approvals", sa.Column("code", sa.String(8), nullable=False, server_default=""))
    is_open = sa.text("status = 'waiting' AND code <> ''")
    op.create_index(
        "approvals_by_code", "approvals", ["owner", "code"], unique=True,
        sqlite_where=is_open, postgresql_where=is_open,
    )  # fmt: skip
    op.create_table(
        "request_keys",
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "name"),
    )
    op.create_index("request_keys_by_age", "request_keys", ["created_at"])
    op.drop_table("turns")
