"""The documentation leads somewhere: all that it mentions exists, and the settings page matches the settings tree."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel, Field, SecretStr

from scripts import settings_table
from task.settings import PREFIX, Settings
from task.settings.sources import CONFIG_VARIABLE, settings_of

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^(`{3,})(.*)\n(?:.*\n)*?\1$", re.MULTILINE)
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+\s+(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_link_leads_to_a_file_and_a_heading_that_exist(page: Path) -> None:
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_mentioned_command_and_target_exists(page: Path) -> None:
    from task.cli.app import COMMANDS

    text = page.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"(?:`|bin/|^|\d )dial-agent ([a-z][a-z-]*)", text, re.MULTILINE)) <= COMMANDS.keys()
    assert set(re.findall(r"(?:`|^)make (?:[A-Z]\S* )?([a-z-]+)", text, re.MULTILINE)) <= targets


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_mentioned_setting_exists(page: Path) -> None:
    known = {CONFIG_VARIABLE, *(setting.variable for setting in settings_of(Settings, PREFIX))}
    assert set(re.findall(rf"\b{PREFIX}[A-Z0-9_]*[A-Z0-9]\b", page.read_text(encoding="utf-8"))) <= known


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_every_block_names_its_language_so_that_none_is_left_out_of_what_is_run(page: Path) -> None:
    opened = [found[2] for found in FENCED.finditer(page.read_text(encoding="utf-8"))]
    assert set(opened) <= {"sh", "python", "text", "yaml", "json", "markdown", "prompt"}


def test_the_front_page_leads_to_every_page_and_there_are_thirty_at_most() -> None:
    front, pages = (ROOT / "docs" / "README.md").read_text(encoding="utf-8"), [*(ROOT / "docs").glob("*.md")]
    assert all(f"({page.name})" in front for page in pages if page.name != "README.md")
    assert len(pages) <= 30


def test_the_readme_is_short_and_shows_one_picture() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.splitlines()) <= 110
    assert readme.count("![") == 1


def test_the_readmes_program_is_the_tutorials() -> None:
    readme, tutorial = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/tutorial.md"))
    [program] = [text for text in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "OpenAI(" in text]
    assert program in tutorial


def test_every_listed_deviation_stands_in_the_documentation() -> None:
    listed = tomllib.loads((ROOT / "tests" / "contract" / "deviations.toml").read_text(encoding="utf-8"))
    page = (ROOT / "docs" / "names.md").read_text(encoding="utf-8")
    for row in listed.get("deviation", []):
        assert row["name"].rpartition(":")[2] in page


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## \[(.+?)\](?: - (\d{4}-\d\d-\d\d))?$", text, re.MULTILINE)
    assert releases[0] == ("Unreleased", "")
    assert all(date for _, date in releases[1:])
    assert max(map(len, (part.splitlines() for part in text.split("\n## [")[1:]))) <= 60
    assert set(re.findall(r"^### (.+)$", text, re.MULTILINE)) <= {
        "Added", "Changed", "Deprecated", "Removed", "Fixed", "Security",
    }  # fmt: skip


class Limits(BaseModel):
    """How far it goes."""

    steps: int = Field(default=15, description="Steps of one run.")


class Tree(BaseModel):
    port: int = Field(default=5030, description="Port | number.")
    tools: list[str] = Field(default_factory=lambda: ["a", "b"], description="More tools.")
    key: SecretStr | None = Field(default=SecretStr("sesame"), description="A key.")
    limits: Limits = Limits()


def test_each_setting_is_a_row_with_its_variable_key_default_and_meaning() -> None:
    text = settings_table.page(Tree)
    assert "| `AGENT_PORT` | `port` | `5030` | Port \\| number. |" in text
    assert "| `AGENT_TOOLS` | `tools` | `a,b` | More tools. |" in text
    assert "## `limits`: How far it goes\n" in text
    assert "| `AGENT_LIMITS__STEPS` | `limits.steps` | `15` | Steps of one run. |" in text


def test_every_promise_has_tests_that_would_notice_its_breach() -> None:
    promises: dict[str, list[str]] = tomllib.loads((ROOT / "tests" / "promises.toml").read_text(encoding="utf-8"))
    rows = re.findall(
        r"^\| (.+?) \|.*\| (\[.*/tests/.*) \|$", (ROOT / "docs" / "security.md").read_text("utf-8"), re.MULTILINE
    )
    linked = {attack: set(re.findall(r"\.\./tests/(\S+)\.py", links)) for attack, links in rows}
    named = {attack: {test.partition("::")[0] for test in tests} for attack, tests in promises.items()}
    assert named == linked
    for file, _, name in (test.partition("::") for tests in promises.values() for test in tests):
        assert re.search(
            rf"^(async )?def {name}\(", (ROOT / "tests" / f"{file}.py").read_text("utf-8"), re.MULTILINE
        ), name
