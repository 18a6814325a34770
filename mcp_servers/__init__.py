"""Companion processes of the agent; they import nothing from task."""
