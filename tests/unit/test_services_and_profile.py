"""What a process shares and what its agent is cannot be changed; a door derives a profile of its own."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest
import pytest_asyncio

from task.product import Profile, Services, opened
from task.settings import Settings

TASK = Path(__file__).resolve().parents[2] / "task"


@pytest_asyncio.fixture
async def agent(tmp_path: Path) -> AsyncGenerator[tuple[Services, Profile]]:
    services, profile = opened(Settings.model_validate({"data_dir": tmp_path}), tools=())
    yield services, profile
    await services.close()


async def test_assigning_to_what_a_process_shares_or_to_its_agent_raises(agent: tuple[Services, Profile]) -> None:
    for part in agent:
        assert not hasattr(part, "__dict__")
        for field in fields(part):
            with pytest.raises(FrozenInstanceError):
                setattr(part, field.name, None)


async def test_a_door_derives_a_profile_and_the_others_keep_theirs(agent: tuple[Services, Profile]) -> None:
    _, profile = agent
    assert replace(profile, model="another").model == "another" != profile.model


def test_nothing_assigns_to_services_or_profiles() -> None:
    assigned = re.compile(r"(services|profile|product)\.[a-z_]+ = |\bobject\.__setattr__|\bsetattr\(")
    found = [
        f"{path.relative_to(TASK)}: {line.strip()}"
        for path in TASK.rglob("*.py")
        if "reference" not in path.parts
        for line in path.read_text(encoding="utf-8").splitlines()
        if assigned.search(line)
    ]
    assert found == []
