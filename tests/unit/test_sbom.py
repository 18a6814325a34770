"""The list of licences: which are permissive, and what counts as a part of the product."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.sbom import licence, permissive, problems, required, vendored


def component(name: str, *stated: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "version": "1.0", "licenses": list(stated)}


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("MIT", True),
        ("Apache-2.0 WITH LLVM-exception AND (GPL-2.0-only OR BSD-3-Clause)", True),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only WITH Classpath-exception-2.0", False),
        ("License :: Other/Proprietary License", False),
        ("True", False),
        ("", False),
    ],
)
def test_a_licence_is_permissive_if_it_leaves_a_permissive_choice(expression: str, expected: bool) -> None:
    assert permissive(expression) == expected


def test_of_several_statements_about_one_package_the_usable_one_counts() -> None:
    classifier = {"license": {"name": "License :: OSI Approved :: BSD License"}}
    assert licence(component("x", {"license": {"name": "New BSD, see LICENSE"}}, classifier)) == "BSD-3-Clause"


def test_a_package_with_another_licence_or_none_is_named() -> None:
    found = problems([
        component("reader", {"license": {"id": "MIT"}}), component("copyleft", {"expression": "AGPL-3.0-only"}),
        component("silent"), component("certifi", {"license": {"id": "MPL-2.0"}}),
    ])  # fmt: skip
    assert list(found) == [
        "copyleft 1.0: AGPL-3.0-only is not among the accepted.",
        "silent 1.0: no licence stated is not among the accepted.",
    ]


def test_what_the_product_requires_counts_and_what_only_tests_need_does_not() -> None:
    found = required(["httpx>=0.28", "no-such-package-anywhere; sys_platform == 'nowhere'"])
    assert {"httpx", "httpcore", "h11", "certifi", "idna", "anyio"} <= found
    assert not {"pytest", "no-such-package-anywhere"} & found


def test_the_libraries_of_the_page_are_listed_with_their_licences() -> None:
    assert not list(problems(vendored()))
    assert "katex" in {item["name"] for item in vendored()}
