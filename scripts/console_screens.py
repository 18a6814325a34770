"""Write what the console looks like into docs/console.md, from one conversation with it."""

import asyncio
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.console_journey import journey

PAGE = Path(__file__).resolve().parent.parent / "docs" / "console.md"
OPENING, CLOSING = "<!-- Written by `make docs` -->", "<!-- Up to here -->"
_SCREEN = re.compile(r"^\*\*([^*\n]+)\*\*\n\n```text\n(.*?)\n```$", re.MULTILINE | re.DOTALL)


def documented(page: str) -> dict[str, str]:
    """The screens of the page by their titles."""
    return dict(_SCREEN.findall(page.partition(OPENING)[2].partition(CLOSING)[0]))


def with_screens(page: str, screens: Mapping[str, str]) -> str:
    """The page with these screens instead of its own."""
    before, after = page.partition(OPENING)[0], page.partition(CLOSING)[2]
    blocks = [f"**{title}**\n\n```text\n{screen}\n```" for title, screen in screens.items()]
    return "\n\n".join([before + OPENING, *blocks, CLOSING]) + after


async def main() -> None:
    page = PAGE.read_text("utf-8")
    with tempfile.TemporaryDirectory() as folder:
        async with journey(Path(folder)) as seen:
            page = with_screens(page, seen.pictures)
    PAGE.write_text(page, "utf-8")


if __name__ == "__main__":
    asyncio.run(main())
