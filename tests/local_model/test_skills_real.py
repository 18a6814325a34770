"""A skill with the real model of this machine, through the whole product."""

import json
from pathlib import Path

import pytest

from scripts.local_answers import asked, person_with_the_model, staged
from tests.support.skill_folders import ASKED, documented_skill

pytestmark = [pytest.mark.local_model, pytest.mark.system, pytest.mark.timeout(3600)]


async def test_a_skill_that_the_user_picks_draws_its_chart_with_its_own_script(tmp_path: Path) -> None:
    """A model of this size does not pick a skill by itself: it draws with code of its own."""
    skills, home = documented_skill(tmp_path / "skills"), tmp_path / "home"
    home.mkdir()
    async with person_with_the_model(home, AGENT_SKILLS__FOLDERS=json.dumps([str(skills)])) as person:
        answer = await asked(person, ASKED, skills=[{"url": "bar-chart"}])
        [chart] = [item for item in answer.attachments.values() if item["title"] == "bars.png"]
        status, content = await person.get(chart["url"])
    assert (status, content[:4]) == (200, b"\x89PNG")
    assert "%run skills/bar-chart/scripts/bars.py north=3 south=5" in staged(answer)
