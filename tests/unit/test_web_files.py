"""The libraries of the web page are listed, unchanged and licensed, and its catalogues complete."""

import json
import re
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest

from scripts.vendor import LIST, VENDOR, folder_of
from task.api.page import STATIC

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


FORMS = {"de": 2, "uk": 4, "zh": 1}  # of a text that depends on a number
COMMENT = re.compile(r"^\s*(//|\*|/\*).*$", re.MULTILINE)
CALL = re.compile(r'(?<![\w.])t\(\s*("(?:[^"\\\n]|\\.)*")?')
# Where people see or hear a text: an attribute, or the child of an element.
SHOWN = re.compile(r'(?:"aria-label"|\btitle|\bplaceholder|\balt): "([^"\n]*)"|\}, "([^"\n]*)"\)')
MODULES = [path for path in sorted(STATIC.glob("*.js")) if path.name != "i18n.js"]


def code(path: Path) -> str:
    return COMMENT.sub("", path.read_text("utf-8"))


def texts() -> set[str]:
    return {json.loads(found) for path in MODULES for found in CALL.findall(code(path)) if found}


def placeholders(text: str) -> Counter[str]:
    return Counter(re.findall(r"\{\w+\}", text))


@pytest.mark.parametrize("language", FORMS)
def test_a_catalogue_has_each_text_of_the_page_and_no_other(language: str) -> None:
    catalogue = json.loads((STATIC / "lang" / f"{language}.json").read_text("utf-8"))
    assert sorted(set(catalogue) ^ texts()) == []
    for text, translation in catalogue.items():
        forms, translated = text.split(" | "), translation.split(" | ")
        assert len(translated) == (FORMS[language] if len(forms) > 1 else 1), text
        assert all(placeholders(form) == placeholders(forms[-1]) for form in translated), text
        assert translation.strip(), text
        assert language == "zh" or text[0].isspace() == translation[0].isspace(), text


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_translates_what_people_see_and_only_literal_texts(path: Path) -> None:
    source = code(path)
    assert [found for found in CALL.findall(source) if not found] == []
    shown = [one or other for one, other in SHOWN.findall(source)]
    assert [text for text in shown if re.search(r"[A-Za-z]{2}", text)] == []
