"""The documented place of the Python functions of the current folder."""

from task.reference.workspace import *  # noqa: F403
