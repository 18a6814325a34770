"""The documentation's site and pictures: built strictly, searched without another host, and of today's page."""

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import run
from threading import Thread

from PIL import Image, ImageChops, ImageStat
from playwright.async_api import expect

from scripts.screenshots import FOLDER, take
from tests.support.browser import visit
from tests.support.up import ROOT
from tests.support.web import PAGE_MARKS

pytestmark = PAGE_MARKS
PICTURE = re.compile(r"!\[[^\]]+\]\((?:docs/)?images/([\w-]+\.png)\)")
COARSE = (64, 48)  # text of another font is the same here, another layout is not


@contextmanager
def served(folder: Path) -> Generator[str]:
    """The folder as a site; its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def test_the_site_is_built_without_a_warning_and_its_search_finds_a_section(tmp_path: Path) -> None:
    built = run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    with served(tmp_path) as address:
        async with visit(address) as visited:
            await visited.page.get_by_placeholder("Search").click()
            await visited.page.get_by_placeholder("Search").press_sequentially("exit codes")
            await visited.page.locator(".md-search-result__link[href$='#exit-codes']").click()
            await expect(visited.page).to_have_url(re.compile("/tutorial/.*#exit-codes"))
            await expect(visited.page.get_by_role("heading", name="Exit codes")).to_be_in_viewport()
    assert (visited.asked, visited.faults) == ({"127.0.0.1"}, [])


async def test_the_pictures_are_of_todays_page(tmp_path: Path) -> None:
    await take(tmp_path)
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    shown = {name for page in pages for name in PICTURE.findall(page.read_text(encoding="utf-8"))}
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in FOLDER.iterdir()} == shown
    for name in shown:
        now, then = (Image.open(folder / name).convert("L").resize(COARSE) for folder in (tmp_path, FOLDER))
        assert ImageStat.Stat(ImageChops.difference(now, then)).mean[0] < 6, name
