"""Write a generated page of docs/, or the generated part of one, or report whether it is current."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
OPENING, CLOSING = "<!-- Written by `make docs` -->", "<!-- Up to here -->"


def with_part(page: str, text: str) -> str:
    """The page with this text between its two comments."""
    before, after = page.partition(OPENING)[0], page.partition(CLOSING)[2]
    return f"{before}{OPENING}\n\n{text.strip()}\n\n{CLOSING}{after}"


def publish(name: str, text: str, source: str, arguments: list[str], docs: Path = DOCS) -> int:
    """Write the page, or its part; with `--check` only compare it with what its `source` gives. The exit code."""
    page = docs / name
    present = page.read_text(encoding="utf-8") if page.is_file() else ""
    text = with_part(present, text) if CLOSING in present else text
    if "--check" not in arguments:
        page.write_text(text, encoding="utf-8")
        return 0
    if present == text:
        return 0
    print(f"{page.name} does not match {source}; run `make docs`.", file=sys.stderr)
    return 1
