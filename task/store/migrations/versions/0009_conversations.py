"""Where sessions come from, which are pinned, and the words by which they are found."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from task.store.search import reindex

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

AT_ONCE = 200
BY_PROGRAMS = """
UPDATE sessions SET origin = 'api'
WHERE id IN (SELECT session_id FROM traces WHERE door IN ('responses', 'chat', 'v1', 'dial'))
AND id NOT IN (SELECT session_id FROM traces WHERE session_id IS NOT NULL AND door = 'runs')
"""
BY_CONSOLE = "UPDATE sessions SET origin = 'console' WHERE id IN (SELECT session_id FROM traces WHERE door = 'console')"


def upgrade() -> None:
    op.add_column("sessions", sa.Column("origin", sa.String(20), nullable=False, server_default="page"))
    op.add_column("sessions", sa.Column("pinned", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_table(
        "session_words",
        sa.Column("session_id", sa.String(40), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["session_id"], ["sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id"),
    )
    if op.get_bind().dialect.name == "postgresql":
        op.execute(
            "ALTER TABLE session_words ALTER COLUMN words SET STORAGE EXTERNAL"
        )  # to unpack costs more than to read
    op.execute(BY_PROGRAMS)
    op.execute(BY_CONSOLE)
    known = [row.id for row in op.get_bind().execute(sa.text("SELECT id FROM sessions"))]
    for place in range(0, len(known), AT_ONCE):
        reindex(op.get_bind(), *known[place : place + AT_ONCE])
