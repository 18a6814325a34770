"""How the web page is served, and what its policy forbids."""

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from task.api.page import STATIC, page_files
from task.settings import Settings
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


async def test_what_the_page_names_is_never_asked_for_again_and_leads_to_files_of_its_version(tmp_path: Path) -> None:
    async with http_api(tmp_path=tmp_path) as api:
        page = await api.get("/")
        assert page.headers["Cache-Control"] == "no-cache"
        [version] = set(re.findall(r'(?:src|href)="static/([0-9a-f]{16})/[^"]+"', page.text))
        script = await api.get(f"/static/{version}/main.js")
        assert script.headers["Cache-Control"] == "max-age=31536000, immutable"
        assert script.text == (await api.get("/static/main.js")).text
        older = await api.get(f"/static/{'0' * 16}/main.js")  # of a page that is still open after an update
        assert (older.status, older.headers["Cache-Control"], older.text) == (200, "no-cache", script.text)
        assert (await api.get(f"/static/{'0' * 16}/nothing.js")).status == 404


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


async def test_the_editor_may_be_framed_by_the_named_origins_alone_and_sends_to_core_only(tmp_path: Path) -> None:
    editor = {"editor_origins": "https://chat.example, http://chat:3000", "editor_core": "https://core.example/dial"}
    async with http_api(tmp_path=tmp_path, http={"ui": False, **editor}) as api:
        policy = (await api.get("/editor")).headers["Content-Security-Policy"]
        assert policy.endswith("frame-ancestors https://chat.example http://chat:3000")
        assert "script-src 'self'; style-src 'self';" in policy
        assert "connect-src 'self' https://core.example;" in policy
        assert (await api.get("/static/editor.js")).status == 200
    async with http_api(tmp_path=tmp_path) as api:
        assert (await api.get("/editor")).status == (await api.post("/editor/check", {})).status == 404


@pytest.mark.parametrize("origin", ["*", "chat.example", "https://chat.example/path", "https://a; script-src *"])
def test_only_an_origin_may_frame_the_editor(origin: str) -> None:
    with pytest.raises(ValidationError, match="must be an origin"):
        Settings.model_validate({"http": {"editor_origins": [origin]}})


FAULTS = [
    ({"instructions": "x" * 10**6}, ["instructions"], "at most 20000 characters"),
    ({"limits": {"steps": -1}}, ["limits", "steps"], "greater than or equal to 1"),
    ({"starters": [{"title": "Hi"}]}, ["starters", "0", "text"], "required"),
    ({"tools": ["jira", "prod-db"]}, ["tools"], "names 'prod-db'"),
    ([], [""], "properties do not fit"),
]


@pytest.mark.fault("editor: properties of 1 MB, of wrong types, or outside the operator's bounds")
async def test_the_first_fault_of_properties_is_one_sentence_with_its_place(tmp_path: Path) -> None:
    bounds: dict[str, Any] = {"http": {"editor_origins": ["https://chat.example"]}, "applications": {"tools": ["jira"]}}
    async with http_api(tmp_path=tmp_path, **bounds) as api:
        assert (await api.post("/editor/check", {"instructions": "Be brief.", "tools": ["jira"]})).json == {}
        for properties, at, said in FAULTS:
            fault = (await api.post("/editor/check", properties)).json
            assert (fault["at"], said in fault["error"], len(fault["error"]) < 200) == (at, True, True), fault


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_the_pages_own_files_are_small_and_ask_no_other_host(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 350
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)[\w.]+", text) == []
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text)
