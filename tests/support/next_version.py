"""The product as a later version of it would be: its tables are some additive migrations ahead of those here."""

import shutil
from pathlib import Path

from task.store.tables import HEAD
from tests.support.up import ROOT

MIGRATION = """\
import sqlalchemy as sa
from alembic import op

revision = "{revision}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("mood_{revision}", sa.String(20), nullable=False, server_default="calm"))
    op.create_table("moods_{revision}", sa.Column("name", sa.String(20), primary_key=True))
"""


def version_after(steps: int) -> str:
    """The version of the tables so many migrations ahead of those here."""
    return f"{int(HEAD) + steps:04}"


def later_product(folder: Path, steps: int = 1) -> str:
    """A folder for `PYTHONPATH` with the packages of a version whose tables are `steps` migrations ahead."""
    task = folder / "task"
    task.mkdir(parents=True)
    for item in (ROOT / "task").iterdir():
        if item.name not in ("store", "__pycache__"):
            (task / item.name).symlink_to(item)
    (folder / "mcp_servers").symlink_to(ROOT / "mcp_servers")
    store = task / "store"
    shutil.copytree(ROOT / "task" / "store", store, ignore=shutil.ignore_patterns("__pycache__"))
    tables = store / "tables.py"
    tables.write_text(tables.read_text().replace(f'HEAD = "{HEAD}"', f'HEAD = "{version_after(steps)}"'))
    for step in range(1, steps + 1):
        revision = version_after(step)
        migration = MIGRATION.format(revision=revision, before=version_after(step - 1))
        (store / "migrations" / "versions" / f"{revision}_later.py").write_text(migration)
    return str(folder)
