"""The libraries that the web page carries are the listed ones, unchanged, licensed and small."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest

from scripts.vendor import LIST, VENDOR, folder_of
from task.api.page import PageFile

PACKAGES = json.loads(LIST.read_text())["packages"]
MOST_BYTES = 6_000_000


@pytest.mark.fault("web page: a library of the page that was changed")
def test_every_file_is_listed_with_its_hash_and_no_other_is_there() -> None:
    listed = {folder_of(package) / name: digest for package in PACKAGES for name, digest in package["files"].items()}
    found = {path: sha256(path.read_bytes()).hexdigest() for path in VENDOR.rglob("*") if path.is_file()}
    assert found.pop(LIST)
    assert found == listed
    assert sum(path.stat().st_size for path in found) <= MOST_BYTES


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package["name"])
def test_every_package_is_pinned_and_carries_a_free_licence(package: dict[str, str]) -> None:
    assert package["license"] in {"MIT", "BSD-3-Clause", "Apache-2.0"}
    assert package["integrity"].startswith("sha512-")
    assert "LICENSE" in package["files"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("pdfjs-dist/pdf.worker.min.mjs", "text/javascript; charset=utf-8"),
        ("katex/katex.min.css", "text/css; charset=utf-8"),
        ("katex/fonts/KaTeX_Main-Regular.woff2", "font/woff2"),
    ],
)
def test_modules_and_fonts_have_the_types_that_browsers_ask_for(name: str, kind: str) -> None:
    assert PageFile(name, VENDOR / name).media_type == kind
