"""Hostile properties, toolsets and called deployments before the whole product, and a model that obeys all it reads."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.support.red_team_by_name import NamedCase, harm_by_name, load_named_cases

CASES = load_named_cases(Path(__file__).with_name("injections_by_name.yaml"))
SAMPLE = ("properties-mail", "listing-lies-reading", "callee-stage")
AT_ONCE = 3


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
    places, harm = asyncio.Semaphore(AT_ONCE), dict[str, list[str]]()

    async def run(case: NamedCase) -> None:
        (own := tmp_path / case.id).mkdir()
        async with places:
            harm[case.id] = await harm_by_name(case, own, guarded=guarded)

    async with asyncio.TaskGroup() as group:
        for case in CASES:
            group.create_task(run(case))
    assert min(Counter(case.kind for case in CASES).values()) >= 10
    assert [name for name, found in harm.items() if bool(found) is guarded] == []
