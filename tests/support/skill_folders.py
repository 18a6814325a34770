"""The skill of docs/skills.md as a folder, and a model that follows skills as a capable one would."""

import re
from pathlib import Path

from task.llm.scripted import Reply, says, wants
from tests.support.upstream import Received

PAGE = Path(__file__).resolve().parents[2] / "docs" / "skills.md"
ASKED = "Draw a bar chart: north 3, south 5."


def documented_skill(folder: Path) -> Path:
    """The folder of skills with the documented one in it."""
    text = PAGE.read_text("utf-8")
    [header, script] = [re.findall(rf"^```{kind}\n(.*?)^```$", text, re.S | re.M)[0] for kind in ("markdown", "python")]
    (folder / "bar-chart" / "scripts").mkdir(parents=True)
    (folder / "bar-chart" / "SKILL.md").write_text(header)
    (folder / "bar-chart" / "scripts" / "bars.py").write_text(script)
    return folder


def follows_skills(received: Received) -> Reply:
    """Reads the first skill of the catalogue, runs the line that it names, and says that it is done."""
    last = received.messages[-1]
    if last["role"] != "tool":
        return wants("read_skill", name="bar-chart")
    line = re.search(r"%run .*", str(last["content"]))
    return wants("execute_code", code=line[0]) if line and "<skill" in last["content"] else says("Here it is.")
