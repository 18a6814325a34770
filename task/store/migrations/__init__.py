"""How the schema came to be, step by step; run by `task.store.migrate`."""
