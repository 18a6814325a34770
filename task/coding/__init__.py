"""The coding door: plan a task, carry the plan out in a workspace, and verify what was done."""
