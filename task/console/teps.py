"""The documented place of the tool service, which is in `task.reference`."""

from task.reference.teps import TEPSManager as TEPSManager
from task.reference.teps import ToolHandlerInterface as ToolHandlerInterface
