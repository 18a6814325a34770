"""What processes must have in common: the version of the tables they know, and the secret of the hidden state."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("processes", sa.Column("tables_version", sa.String(20), nullable=True))
    op.add_column("processes", sa.Column("secret", sa.String(32), nullable=True))
