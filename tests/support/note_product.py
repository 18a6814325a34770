"""The product with a tool that writes, and a model that wants to use it: somebody has to approve each note."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from task.llm.scripted import Reply, says, wants
from tests.support.product import Product, product
from tests.support.upstream import Item, Received

TOOL = '''
from pathlib import Path

from task.tools.declare import tool
from task.tools.models import Effect


@tool(effects={Effect.WRITE})
def write_note(text: str) -> str:
    """Write a line into the notes."""
    with Path(__file__).with_name("notes.txt").open("a") as notes:
        notes.write(f"{text}\\n")
    return f"noted {text}"
'''


def noting_model(received: Received) -> Reply:
    """Writes the requested note, three numbers at once where three are requested, and reports the result."""
    last = received.messages[-1]
    if last["role"] == "tool":
        return says("Result: ", str(last["content"]))
    first = wants("write_note", text="1") & wants("calculator", expression="1+1")
    return first & wants("write_note", text="2") if "both" in str(last["content"]) else first


@asynccontextmanager
async def noting(tmp_path: Path, then: Item = noting_model, **settings: Any) -> AsyncGenerator[Product]:
    (tmp_path / "noting.py").write_text(TOOL)
    paths = [str(tmp_path / "noting.py")]
    async with product(then=then, tmp_path=tmp_path, tool_paths=paths, **settings) as running:
        yield running


def notes(folder: Path) -> list[str]:
    file = folder / "notes.txt"
    return file.read_text().splitlines() if file.exists() else []
