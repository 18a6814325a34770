"""Write a generated page of docs/, or report whether it is current."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def publish(name: str, text: str, source: str, arguments: list[str], docs: Path = DOCS) -> int:
    """Write the page; with `--check` only compare it with what its `source` gives. The exit code."""
    page = docs / name
    if "--check" not in arguments:
        page.write_text(text, encoding="utf-8")
        return 0
    if page.is_file() and page.read_text(encoding="utf-8") == text:
        return 0
    print(f"docs/{name} does not match {source}; run `make docs`.", file=sys.stderr)
    return 1
