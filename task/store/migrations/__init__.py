"""The migrations of the schema, run by `task.store.schema`."""
