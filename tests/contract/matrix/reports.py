"""Tools whose results are hard to handle, long or failures, and one with a documented name beside its own."""

from task.errors import ToolError
from task.tools.declare import tool
from task.tools.models import Effect


@tool(effects={Effect.READ})
def long_report(lines: int) -> str:
    """A report of so many lines."""
    return "\n".join(["start of the report", *["====="] * lines, "end of the report"])


@tool(name="duckduckgo_web_search", effects={Effect.READ})
def search(query: str, max_results: int = 5) -> str:
    """Search the web."""
    return f"{max_results} results for {query}"


@tool(effects={Effect.READ})
def refused_report(year: int) -> str:
    """The report of a year."""
    raise ToolError(f"There is no report of {year}; try another year.")


@tool(effects={Effect.READ})
def broken_report(year: int) -> str:
    """The report of a year, from a broken archive."""
    raise OSError("the archive is broken")
