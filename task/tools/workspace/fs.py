"""The documented place of the file functions of the current folder."""

from task.reference.workspace import *  # noqa: F403
from task.reference.workspace import _safe_path as _safe_path
