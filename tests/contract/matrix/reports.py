"""Tools with results that are hard to handle: one that is long, and failures."""

from __future__ import annotations

from task.errors import ToolError
from task.tools.declare import tool
from task.tools.models import Effect


@tool(effects={Effect.READ})
def long_report(lines: int) -> str:
    """A report of so many lines."""
    return "\n".join(["start of the report", *["====="] * lines, "end of the report"])


@tool(effects={Effect.READ})
def refused_report(year: int) -> str:
    """The report of a year."""
    raise ToolError(f"There is no report of {year}; try another year.")


@tool(effects={Effect.READ})
def broken_report(year: int) -> str:
    """The report of a year, from a broken archive."""
    raise OSError("the archive is broken")
