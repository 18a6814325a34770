"""The first tables, which until the first release are those of `task.store.tables`.

Whoever writes the next migration writes these tables out here first.
"""

from alembic import op

from task.store.tables import metadata

revision = "0015"  # lower numbers belong to stores that were made before the first release
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    metadata.create_all(op.get_bind())
