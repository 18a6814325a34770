"""A tool that writes, for conversations in which somebody has to approve it."""

from task.tools.declare import tool
from task.tools.models import Effect


@tool(effects={Effect.WRITE})
def write_note(text: str) -> str:
    """Write a line into the notes."""
    return f"noted: {text}"
