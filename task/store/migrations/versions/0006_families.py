"""Families: a conversation and its branches, each with the place where it forks; a person's own prompts."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_ROOTS = """
WITH RECURSIVE found(id, family) AS (
  SELECT id, COALESCE(parent, id) FROM sessions WHERE parent IS NULL OR parent NOT IN (SELECT id FROM sessions)
  UNION ALL SELECT sessions.id, found.family FROM sessions JOIN found ON sessions.parent = found.id
)
UPDATE sessions SET family = (SELECT found.family FROM found WHERE found.id = sessions.id)
WHERE id IN (SELECT id FROM found)
"""
# Where an earlier branch forked was not kept: it is where its messages stop being those of its parent.
_FORKS = """
UPDATE sessions SET fork = (
  SELECT COALESCE(MIN(own.position), sessions.length) FROM messages AS own
  LEFT JOIN messages AS other ON other.session_id = sessions.parent AND other.position = own.position
  WHERE own.session_id = sessions.id AND (other.data IS NULL OR other.data <> own.data)
) WHERE parent IS NOT NULL
"""


def upgrade() -> None:
    op.add_column("sessions", sa.Column("family", sa.String(40), nullable=False, server_default=""))
    op.add_column("sessions", sa.Column("fork", sa.Integer(), nullable=False, server_default="0"))
    op.execute(_ROOTS)
    op.execute(_FORKS)
    op.create_index("sessions_by_family", "sessions", ["family", "updated_at"])
    op.create_table(
        "prompts",
        sa.Column("owner", sa.String(200), nullable=False),
        sa.Column("name", sa.String(60), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "name"),
    )
