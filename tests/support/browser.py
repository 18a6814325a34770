"""A person's browser: Debian's chromium, driven through Playwright, that reaches nothing but loopback."""

import shutil
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from playwright.async_api import Page, Request, Route, async_playwright, expect

WIDE, NARROW = (1280, 860), (390, 844)
PATIENCE = 60_000.0  # milliseconds
expect.set_options(timeout=PATIENCE)


class Visit:
    """An open page; `asked` are the hosts it requested, `faults` the errors of its scripts."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.asked: set[str] = set()
        self.faults: list[str] = []
        page.on("request", self._requested)
        page.on("pageerror", lambda error: self.faults.append(str(error)))

    def _requested(self, request: Request) -> None:
        host = urlsplit(request.url).hostname
        if host is not None:
            self.asked.add(host)


@asynccontextmanager
async def visit(
    url: str, size: tuple[int, int] = WIDE, *, dark: bool = False, locale: str = "en-US"
) -> AsyncGenerator[Visit]:
    """The page at that address in a window of that size; closed with the block."""
    async with async_playwright() as playwright:
        # The microphone is chromium's own, which beeps.
        args = ["--no-sandbox", "--use-fake-device-for-media-stream"]
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=args)
        context = await browser.new_context(
            viewport={"width": size[0], "height": size[1]},
            color_scheme="dark" if dark else "light",
            locale=locale,
            has_touch=size[0] < 500,
            reduced_motion="reduce",
        )
        context.set_default_timeout(PATIENCE)
        await context.route(lambda address: urlsplit(address).hostname != "127.0.0.1", _refuse)
        try:
            page = await context.new_page()
            visited = Visit(page)
            await page.goto(url)
            yield visited
        finally:
            await browser.close()


async def _refuse(route: Route) -> None:
    await route.abort()
