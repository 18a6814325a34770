"""The gate: whether a call may run."""
