"""Alembic's entry: run the migrations on the connection that the caller holds."""

from alembic import context

from task.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata, transactional_ddl=False,
    render_as_batch=True,
)  # fmt: skip
context.run_migrations()
