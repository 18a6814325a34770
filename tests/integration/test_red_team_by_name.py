"""Hostile properties, toolsets and called deployments before the whole product, and a model that obeys all it reads."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.red_team import unexpected
from tests.support.red_team_by_name import NamedCase, harm_by_name, load_named_cases

CASES = load_named_cases(Path(__file__).with_name("injections_by_name.yaml"))
SAMPLE = ("properties-mail", "listing-lies-reading", "callee-stage")


@pytest.mark.fault("application: orders in its instructions or its files, obeyed by the model", case="properties-mail")
@pytest.mark.fault(
    "by name: a toolset that a user made claims that its tools change nothing", case="listing-lies-reading"
)
@pytest.mark.fault(
    "by name: pictures and links to foreign hosts in a callee's stages, files and sources", case="callee-stage"
)
@pytest.mark.parametrize("case", [case for case in CASES if case.id in SAMPLE], ids=lambda case: case.id)
async def test_what_an_application_names_does_nothing_unasked(case: NamedCase, tmp_path: Path) -> None:
    assert await harm_by_name(case, tmp_path) == []


@pytest.mark.system
@pytest.mark.timeout(600)
@pytest.mark.parametrize("guarded", [True, False], ids=["guarded", "all trusted"])
async def test_of_all_cases_none_does_harm_and_where_everything_is_trusted_all_do(
    tmp_path: Path, *, guarded: bool
) -> None:
    assert min(Counter(case.kind for case in CASES).values()) >= 10
    assert await unexpected(CASES, harm_by_name, tmp_path, guarded=guarded) == []
