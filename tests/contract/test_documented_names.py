"""Every name that the specification documents exists as documented, or is listed with a reason."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.support.documented import differences

HERE = Path(__file__).parent
NAMES: dict[str, dict[str, Any]] = json.loads((HERE / "documented_names.json").read_text(encoding="utf-8"))
LISTED = tomllib.loads((HERE / "deviations.toml").read_text(encoding="utf-8"))
NOT_YET: list[str] = LISTED["not_yet"]
DEVIATIONS: dict[str, str] = {row["name"]: row["reason"] for row in LISTED.get("deviation", [])}


def below(listed: str) -> list[str]:
    return [name for name in NAMES if name == listed or name.startswith((f"{listed}:", f"{listed}."))]


TO_COME = {name for listed in NOT_YET for name in below(listed)}


BUILT = sorted(name for name in NAMES if name not in TO_COME and name not in DEVIATIONS)


@pytest.mark.parametrize("name", BUILT)
def test_it_is_as_documented(name: str) -> None:
    assert differences(name, NAMES[name]) == []


def test_every_listed_deviation_still_deviates_and_says_why() -> None:
    for name, reason in DEVIATIONS.items():
        assert differences(name, NAMES[name]), f"{name} is as documented; remove its row"
        assert len(reason.split()) > 5, f"{name} needs a reason"


def test_what_is_listed_as_not_built_is_documented_and_not_there() -> None:
    for name in NOT_YET:
        assert below(name)
        assert all(differences(documented, NAMES[documented]) for documented in below(name))


def test_the_numbers_of_deviations_and_of_names_to_come_do_not_grow_unnoticed() -> None:
    assert len(NAMES) == 160
    assert len(DEVIATIONS) == 1
    assert len(TO_COME) == 47
