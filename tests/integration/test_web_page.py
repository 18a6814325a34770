"""How the web page is served, and what its policy forbids."""

import re
from pathlib import Path

import pytest

from task.api.page import STATIC, page_files
from tests.support.http_api import http_api

OWN = [path for path in sorted(STATIC.iterdir()) if path.suffix in (".js", ".css", ".html")]


async def test_the_page_and_all_its_files_are_served_with_a_policy_without_inline_script(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        page = await api.get("/")
        assert page.status == 200
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self';" in policy
        assert "connect-src 'self'" in policy
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        assert "frame-ancestors 'none'" in policy
        assert re.findall(r"<script(?![^>]* src=)", page.text) == []
        for name in re.findall(r'(?:src|href)="(static/[^"]+)"', page.text):
            file = await api.get(f"/{name}")
            assert (file.status, file.headers["X-Content-Type-Options"]) == (200, "nosniff")


async def test_files_are_compressed_kept_by_the_browser_and_asked_for_again_only_when_changed(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        script = await api.get("/static/main.js", headers={"Accept-Encoding": "gzip"})
        assert script.headers["Content-Encoding"] == "gzip"
        assert script.headers["Content-Type"].startswith("text/javascript")
        assert script.headers["Cache-Control"] == "no-cache"
        again = await api.get("/static/main.js", headers={"If-None-Match": script.headers["Etag"]})
        assert (again.status, again.text) == (304, "")
        charts = await api.get("/static/plotly.min.js", headers={"Accept-Encoding": "gzip"})
        assert (charts.status, charts.headers["Content-Encoding"]) == (200, "gzip")


def test_what_is_loaded_before_the_first_answer_is_small_and_known_at_once() -> None:
    files = page_files()
    links = re.findall(r'(?:src|href)="static/([^"]+)"', files["index.html"].content.decode())
    scripts = {name for name in links if name.endswith(".js")}
    imported = {name for script in scripts for name in IMPORTED.findall(files[script].content.decode())}
    assert imported <= scripts >= {"main.js", "dom.js", "markdown.js"}
    assert "viewer.js" not in scripts
    assert sum(len(files[name].compressed) for name in {"index.html", *links}) <= 120_000


IMPORTED = re.compile(r'^(?:import|export) .*from "\./([^"]+)";', re.MULTILINE)


@pytest.mark.fault("web page: a path out of the page's folder")
@pytest.mark.parametrize("path", ["nothing.js", "../page.py", "..%2fpage.py", "%2e%2e/page.py", "vendor", ""])
async def test_nothing_but_the_pages_files_is_served(path: str, tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        assert (await api.get(f"/static/{path}")).status == 404


async def test_the_page_can_be_switched_off(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path, http={"ui": False}) as api:
        assert (await api.get("/")).status == 404
        assert (await api.get("/static/main.js")).status == 404


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_the_pages_own_files_are_small_and_ask_no_other_host(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 350
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)[\w.]+", text) == []
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
