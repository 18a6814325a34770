"""What a process shares and what its agent is cannot be changed; a door derives a profile of its own."""

import re
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path

import pytest

from task.product import opened
from task.settings import Settings

TASK = Path(__file__).resolve().parents[2] / "task"


async def test_what_a_process_shares_and_what_its_agent_is_cannot_be_changed_but_derived(tmp_path: Path) -> None:
    services, profile = opened(Settings.model_validate({"data_dir": tmp_path}), tools=())
    try:
        for part in (services, profile):
            assert not hasattr(part, "__dict__")
            for field in fields(part):
                with pytest.raises(FrozenInstanceError):
                    setattr(part, field.name, None)
        assert replace(profile, model="another").model == "another" != profile.model
    finally:
        await services.close()


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
