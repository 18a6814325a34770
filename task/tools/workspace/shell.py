"""The documented place of the shell functions of the current folder."""

from task.reference.workspace import *  # noqa: F403
