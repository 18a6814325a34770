"""Alembic's entry: run the migrations on the connection that the caller holds."""

from alembic import context

from task.store.tables import metadata

held = context.config.attributes["connection"]
context.configure(connection=held, target_metadata=metadata, transactional_ddl=False, render_as_batch=True)
context.run_migrations()
