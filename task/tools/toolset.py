"""The documented place of `ToolSet`."""

from task.reference.toolset import ToolSet as ToolSet
