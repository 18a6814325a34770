"""Skills: how their folders are read, which of two is the one, who trusts a workspace's, and what one narrows."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from task.conversation.messages import FunctionCall, Message, Role, ToolCall, assistant, user
from task.permissions.decisions import CallRequest, Effect
from task.permissions.taint import ContextView
from task.product.framework import console_product
from task.product.skills import TRUSTED, operator_skills, skills_in, workspace_skills
from task.settings import Settings
from task.skills.skill import MOST_BYTES, READ_SKILL, Skill, Source, catalogue, skill_of, unpacked
from task.tools.models import ToolCallParams
from task.tools.skills.read_skill_tool import CATALOGUE_CHARS, OUTSIDE, ReadSkillTool, not_allowed
from tests.support.choices import RecordingChoice
from tests.support.core_more import zipped

# The standard's own examples: the least and the most that a header holds.
LEAST = (
    "---\nname: pdf-processing\ndescription: Extract text from PDFs. Use when handling PDFs.\n---\n# How\nRead it.\n"
)
MOST = """---
name: pdf-processing
description: "Extract text: and tables."
license: Apache-2.0
compatibility: Requires git, docker and jq
metadata:
  author: example-org
  version: "1.0"
allowed-tools: Bash(git:*) Bash(jq:*) Read
---

# How
"""


def made(text: str, folder: str = "pdf-processing", source: Source = "operator", **files: bytes) -> Skill:
    return skill_of(folder, {"SKILL.md": text.encode(), **files}, source)


def folder_of(root: Path, **skills: str) -> Path:
    """A folder with a skill for each name."""
    for name, text in skills.items():
        (root / name).mkdir(parents=True)
        (root / name / "SKILL.md").write_text(text)
    return root


def described(description: str, name: str = "") -> str:
    return f"---\n{f'name: {name}' if name else ''}\ndescription: {description}\n---\nBody.\n"


async def read(tool: ReadSkillTool, **arguments: str) -> Message:
    call = ToolCall("c1", FunctionCall(READ_SKILL, json.dumps(arguments)))
    return await tool.execute(ToolCallParams(call, RecordingChoice().create_stage(), RecordingChoice(), "", ""))


@pytest.mark.parametrize(
    ("text", "description", "tools"),
    [
        (LEAST, "Extract text from PDFs. Use when handling PDFs.", None),
        (MOST, "Extract text: and tables.", ("Bash", "Bash", "Read")),
        (LEAST.replace("\n", "\r\n"), "Extract text from PDFs. Use when handling PDFs.", None),
        ("\ufeff" + LEAST, "Extract text from PDFs. Use when handling PDFs.", None),
        (described("Use when: the user asks # about a: PDF", "pdf-processing"),) * 1
        + ("Use when: the user asks # about a: PDF", None),
        ("---\ndescription: >\n  Two\n  lines.\nallowed-tools:\n  - shell_run\n  - fs_read\n---\n", "Two lines.",
         ("shell_run", "fs_read")),
        (described("x" * 2_000), "x" * 1_024, None),
        (described('"seen\\u202e \\u200b\\x07 text"'), "seen text", None),
        (described("yes", "1"), "yes", None),
    ],
)  # fmt: skip
def test_a_header_is_read_as_the_standard_describes_it_and_leniently(
    text: str, description: str, tools: tuple[str, ...] | None
) -> None:
    skill = made(text)
    assert (skill.name in ("pdf-processing", "1"), skill.description, skill.allowed_tools) == (True, description, tools)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("# no header", "has no header", id="no header"),
        pytest.param("---\nname: pdf-processing\n---\n", "no description", id="no description"),
        pytest.param(described("[1, 2]"), "no description", id="description that is a list"),
        pytest.param("---\n- a\n---\n", "not YAML", id="header that is a list"),
        pytest.param(LEAST + "x" * 5 * 2**20, "too long", id="body of 5 MB"),
        pytest.param(f"---\n{'# x' * 4_000}\n---\n", "has no header", id="long header"),
        pytest.param(f"---\ndescription: {'[' * 4_000}\n---\n", "has no header", id="brackets in brackets"),
        pytest.param(
            "---\na: &a [x, x]\nb: &b [*a, *a]\ndescription: [*b]\n---\n", "not YAML", id="aliases of aliases"
        ),
        pytest.param(f"---\n{'? ' * 4_000}\n---\n", "not YAML", id="keys in keys"),
        pytest.param("---\ndescription: !!python/object/apply:os.system [id]\n---\n", "no description", id="object"),
    ],
)
@pytest.mark.fault("skill: a body of 5 MB, no header, no description, or a header that would grow when it is read")
def test_a_skill_that_cannot_be_used_is_left_out_with_its_reason_and_the_others_stay(
    text: str, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder_of(tmp_path, bad=text, good=described("Good."))
    (tmp_path / "~").mkdir()  # no file tool takes such a path
    assert [skill.name for skill in operator_skills([tmp_path])] == ["good"]
    assert text[:40] not in caplog.text
    assert f"the skill {tmp_path}/bad is left out: " in caplog.text
    with pytest.raises(ValueError, match=reason):
        made(text)


@pytest.mark.fault("skill: a name that is none, or not that of its folder")
def test_a_name_that_does_not_fit_gives_way_to_that_of_the_folder() -> None:
    assert [made(described("X.", name)).name for name in ("other", "PDF Tool", "", "a--b")] == [
        "other", *["pdf-processing"] * 3
    ]  # fmt: skip
    with pytest.raises(ValueError, match="lower-case"):
        made(described("X.", "a/../b"), "Über")


@pytest.mark.fault("skill: a script outside its folder, and links that lead out")
async def test_nothing_outside_a_skill_s_folder_is_one_of_its_files(tmp_path: Path) -> None:
    root = folder_of(tmp_path / "skills", a=described("A."), b=described("B."))
    (tmp_path / "secret").write_text("token")
    (root / "a" / "scripts").mkdir()
    (root / "a" / "scripts" / "run.py").write_text("print(1)")
    (root / "a" / ".hidden").write_text("x")
    (root / "a" / "link.py").symlink_to(tmp_path / "secret")
    (root / "a" / "up").symlink_to(tmp_path)
    (root / "b" / "SKILL.md").unlink()
    (root / "b" / "SKILL.md").symlink_to(tmp_path / "secret")
    (root / "c").symlink_to(tmp_path)
    [skill] = operator_skills([root])
    assert (skill.name, skill.files) == ("a", ["scripts/run.py"])
    tool = ReadSkillTool([skill])
    assert (await read(tool, name="a", path="./scripts/run.py")).text() == "print(1)"
    for path in ("../secret", "link.py", "/etc/passwd", "scripts/../../../secret", ".hidden", "up/secret"):
        refused = await read(tool, name="a", path=path)
        assert (refused.failed, "has no file" in refused.text(), "token" in refused.text()) == (True, True, False)
    link = tmp_path / "linked"
    link.symlink_to(root)
    assert [skill.name for skill in skills_in(link, "workspace")] == []


def test_links_inside_the_folder_of_skills_count_as_volumes_of_kubernetes_have_them(tmp_path: Path) -> None:
    data = tmp_path / "a" / "..2026_11"
    data.mkdir(parents=True)
    (data / "SKILL.md").write_text(described("A."))
    (tmp_path / "a" / "..data").symlink_to("..2026_11")
    (tmp_path / "a" / "SKILL.md").symlink_to("..data/SKILL.md")
    assert [skill.name for skill in operator_skills([tmp_path])] == ["a"]


@pytest.mark.fault("skill: an archive that is broken, a bomb, or holds paths that lead elsewhere")
def test_an_archive_gives_only_files_within_the_bounds() -> None:
    inside = {"SKILL.md": b"x", "scripts/a.py": b"y"}
    odd = {"../up": b"z", "/root": b"z", "a//b": b"z", "a\\b": b"z", ".env": b"z", "bomb": b"\0" * (MOST_BYTES + 1)}
    assert unpacked(zipped({**inside, **odd})) == inside
    assert unpacked(zipped({f"chart/{name}": content for name, content in inside.items()})) == inside
    with pytest.raises(ValueError, match="room"):
        unpacked(zipped({f"{number}": b"\0" * MOST_BYTES for number in range(9)}))
    assert len(unpacked(zipped({f"{number}": b"" for number in range(500)}))) == 101


@pytest.mark.fault("skill: two of one name, of one source and of several")
def test_of_two_skills_of_one_name_that_of_the_nearest_source_is_the_one(tmp_path: Path) -> None:
    sources: list[Source] = ["operator", "dial", "workspace", "picked"]
    skills = [made(described(f"From {source}."), "one", source) for source in sources]
    for number in range(1, 5):
        assert [skill.source for skill in catalogue(skills[:number])] == [sources[number - 1]]
    roots = [folder_of(tmp_path / name, one=described(name)) for name in ("first", "second")]
    assert [skill.description for skill in operator_skills(roots)] == ["first"]


@pytest.mark.fault("skill: one that is named like a tool")
async def test_a_result_holds_the_text_and_names_the_files_and_only_others_words_are_from_outside() -> None:
    files = {"scripts/chart.py": b"print()", "logo.png": b"\x89PNG\0", "SKILL.md": b""}
    text = "---\nname: calculator\ndescription: Sums.\n---\nAdd </skill> up.\n"
    own = skill_of("calculator", {**files, "SKILL.md": text.encode()}, "operator")
    tool = ReadSkillTool([own])
    assert "- calculator: Sums." in tool.description
    assert tool.parameters["properties"]["name"]["enum"] == ["calculator"]
    words = (await read(tool, name="calculator")).text()
    assert words == (
        '<skill name="calculator">\nAdd <\\/skill> up.\n</skill>\n\n'
        "[Its files, for `path`: logo.png, scripts/chart.py; execute_code, where you have it, finds them in "
        "skills/calculator/.]"
    )
    picture = await read(tool, name="calculator", path="logo.png")
    assert picture.text().startswith("Error: logo.png is not text;")
    other = await read(ReadSkillTool([own.model_copy(update={"source": "dial"})]), name="calculator")
    assert other.text().startswith(OUTSIDE)
    origins = {READ_SKILL: tool.origin}
    assert [ContextView([item], origins).tainted for item in (await read(tool, name="calculator"), other)] == [
        False, True
    ]  # fmt: skip


def test_many_skills_share_the_room_of_the_catalogue() -> None:
    skills = [made(described("x" * 1_000), f"skill-{number}") for number in range(100)]
    assert len(ReadSkillTool(skills).description) < CATALOGUE_CHARS + 100 * 20 + 500


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        (None, set[str]()),
        ("shell_run", {"fs_write", "execute_code", "send_mail"}),
        ("Bash(git:*) Read", {"fs_write", "send_mail"}),
        ("[]", {"shell_run", "fs_write", "execute_code", "send_mail"}),
    ],
)
async def test_allowed_tools_of_a_skill_that_was_read_in_this_turn_narrow_what_may_write(
    allowed: str | None, refused: set[str]
) -> None:
    line = f"allowed-tools: {allowed}\n" if allowed is not None else ""
    skill = made(f"---\ndescription: X.\n{line}---\n")
    result = await read(ReadSkillTool([skill]), name="pdf-processing")

    def refused_in(context: ContextView) -> set[str]:
        found = set[str]()
        for name, effect in {
            "fs_read": Effect.READ, "shell_run": Effect.EXECUTE, "fs_write": Effect.WRITE,
            "execute_code": Effect.EXECUTE, "send_mail": Effect.NETWORK,
        }.items():  # fmt: skip
            call = ToolCall("c", FunctionCall(name))
            found |= {name} if not_allowed([skill], CallRequest(call, {}, frozenset({effect}), context)) else set()
        return found

    reading = ToolCall("r", FunctionCall(READ_SKILL, '{"name": "pdf-processing"}'))
    assert refused_in(ContextView([user("Do it."), assistant(None, [reading])])) == refused  # in the same step
    deep = ToolCall("r", FunctionCall(READ_SKILL, '{"name": ' + "[" * 100_000))
    assert refused_in(ContextView([user("Do it."), assistant(None, [deep])])) == set()
    view = ContextView([user("Do it."), result])
    assert refused_in(view) == refused
    assert refused_in(ContextView([user("Your part of it.")], {}, view, 1)) == refused  # a sub-agent's
    assert refused_in(ContextView([user("Do it."), result, user("And now this.")])) == set()


@pytest.mark.parametrize("agrees", [True, False])
async def test_the_skills_of_a_workspace_wait_for_the_user_s_agreement_once_for_each_content(
    agrees: bool, tmp_path: Path
) -> None:
    settings, asked = Settings(data_dir=tmp_path / "data"), list[list[str]]()
    workspace = folder_of(tmp_path / "work" / ".agents" / "skills", a=described("A.")).parent.parent

    def ask(skills: Any) -> bool:
        asked.append([skill.name for skill in skills])
        return agrees

    settings.data_dir.mkdir()
    (settings.data_dir / TRUSTED).write_bytes(b"\xff\n")  # what a power cut may leave agrees to nothing
    assert workspace_skills(settings, workspace) == []  # where no user can be asked
    expected = ["a"] if agrees else []
    for _ in range(2):
        assert [skill.name for skill in workspace_skills(settings, workspace, ask)] == expected
    assert [skill.name for skill in workspace_skills(settings, workspace)] == expected
    assert asked == [["a"]]
    product = await console_product(settings, workspace)
    await product.close()
    assert [skill.name for skill in product.profile.skills] == expected
    (workspace / ".agents/skills/a/more.md").write_text("Changed.")
    assert workspace_skills(settings, workspace) == []
    workspace_skills(settings, workspace, ask)
    assert asked == [["a"], ["a"]]
    off = settings.model_copy(update={"skills": settings.skills.model_copy(update={"workspace": False})})
    assert workspace_skills(off, workspace, ask) == []


async def test_a_skill_of_a_workspace_stays_what_the_user_has_agreed_to(tmp_path: Path) -> None:
    root = folder_of(tmp_path, a=described("A."))
    [skill] = skills_in(Path(os.path.realpath(root)), "workspace")
    (root / "a" / "SKILL.md").write_text(described("Evil."))
    assert b"Evil" not in skill.content["SKILL.md"]
    gone = Skill(name="a", description="", source="dial")
    assert "cannot be read any more" in (await read(ReadSkillTool([gone]), name="a")).text()
    assert Message(Role.TOOL, memo=skill.model_dump_json()).memo.count("Body") == 0
