"""The documented place of the handler of tool requests, which is in `task.reference`."""

from task.reference.teps import ToolRequestHandler as ToolRequestHandler
