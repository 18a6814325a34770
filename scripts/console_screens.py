"""Write what the console looks like into docs/console.md, from one conversation with it."""

import asyncio
import re
import tempfile
from pathlib import Path

from scripts.pages import CLOSING, OPENING, with_part
from tests.support.console_journey import journey

PAGE = Path(__file__).resolve().parent.parent / "docs" / "console.md"
_SCREEN = re.compile(r"^\*\*([^*\n]+)\*\*\n\n```text\n(.*?)\n```$", re.MULTILINE | re.DOTALL)


def documented(page: str) -> dict[str, str]:
    """The screens of the page by their titles."""
    return dict(_SCREEN.findall(page.partition(OPENING)[2].partition(CLOSING)[0]))


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with journey(Path(folder)) as seen:
            screens = [f"**{title}**\n\n```text\n{screen}\n```" for title, screen in seen.pictures.items()]
    PAGE.write_text(with_part(PAGE.read_text("utf-8"), "\n\n".join(screens)), "utf-8")


if __name__ == "__main__":
    asyncio.run(main())
