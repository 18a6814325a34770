"""Context definitions in both formats; documents come from their folder, have a bounded size, and are current."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from task.context.dcm_manager import ContextOptions, DCMManager
from task.context.definition import Definition, Reference, parse
from task.context.prompt import CHECK_SECONDS, LiveContext, context_prompt
from task.errors import ComponentInitError, DCMInitError, FrameworkError, InvalidRequest
from tests.support.clock import FakeClock

COLON_FORMAT = """\
# FRAMEWORK_CONTEXT.md
# initial_prompt_template: "You are {name}.\\nBe \\"brief\\"."

## Core Persona Definitions
# the first one is the default
persona_catalyst: @personas/catalyst.md
persona_siren: @personas/siren guide.md

## Standards & Rules
coding_guide: @standards/coding.md
"""
BULLET_FORMAT = """\
# Framework Context

## Initial Prompt
Only the block counts.
```prompt
You help the team.
- Not a document: @/nowhere.md
## Not a heading
```

## Standards
Write short functions.

```text
example: @not/a/document.md
```
- **Coding Guide**: @/docs/guide.md
* Style: @docs/style.md
Ask ann@example.org: she knows.
"""


def test_the_format_with_colons() -> None:
    found = parse(COLON_FORMAT)
    assert found.initial_prompt == 'You are {name}.\nBe "brief".'
    assert found.references == (
        Reference("persona_catalyst", "persona_catalyst", "personas/catalyst.md", 6, persona=True),
        Reference("persona_siren", "persona_siren", "personas/siren guide.md", 7, persona=True),
        Reference("coding_guide", "coding_guide", "standards/coding.md", 10),
    )
    assert dict(found.sections) == {"core_persona_definitions": "", "standards_rules": ""}
    assert found.problems == ()


def test_the_format_with_bullets() -> None:
    found = parse(BULLET_FORMAT)
    assert found.initial_prompt == "You help the team.\n- Not a document: @/nowhere.md\n## Not a heading"
    assert found.references == (
        Reference("coding_guide", "Coding Guide", "/docs/guide.md", 17, rooted=True),
        Reference("style", "Style", "docs/style.md", 18, rooted=True),
    )
    assert found.sections["standards"] == (
        "Write short functions.\n\n```text\nexample: @not/a/document.md\n```\nAsk ann@example.org: she knows."
    )


def test_an_initial_prompt_may_be_plain_prose_or_span_lines() -> None:
    assert parse("## Initial Prompt\n\nYou help.\nA lot.\n").initial_prompt == "You help.\nA lot."
    assert parse('initial_prompt_template: "You help.\n\nA lot."\n').initial_prompt == "You help.\n\nA lot."
    assert parse("initial_prompt_template: You help.\n").initial_prompt == "You help."
    assert parse("## Other\n").initial_prompt is None
    assert dict(parse("=== Rules ===\nBe kind.\n", r"^=== (.+) ===$").sections) == {"rules": "Be kind."}


@pytest.mark.fault("context: a block or text that is never closed")
def test_problems_name_their_line() -> None:
    def problems(text: str) -> list[tuple[int, str]]:
        return list(parse(text).problems)

    assert problems("a: @x.md\nb: @y.md\nA: @z.md\n") == [(3, "'A' names a document already, on line 1; ignored")]
    assert problems("## S\n```\nnever\n") == [(2, "the block that ``` opens is never closed")]
    assert problems('\ninitial_prompt_template: "never\n') == [(2, 'the text that " opens is never closed')]
    assert problems('initial_prompt_template: "a"\n# initial_prompt_template: "b"\n') == [
        (2, "a second initial prompt is ignored")
    ]
    assert problems("\nLost words.\nMore.\n## S\nProse.\n") == [
        (2, "text before the first section is ignored; give it a heading")
    ]
    assert problems("\n**: @x.md\n") == [(2, "a document needs a name before its path")]


@pytest.mark.fault("context: endless lines and thousands of documents")
def test_odd_endless_and_empty_definitions_end() -> None:
    assert parse("\ufeff## S\r\na: @x.md\r\n").references[0].path == "x.md"
    assert parse("") == Definition()
    assert parse(" " * 10**6 + "x: @y").references == ()
    found = parse("\n".join(f"d{number}: @{number}.md" for number in range(1500)))
    assert (len(found.references), len(found.problems)) == (1000, 500)


DEFINITION = """\
initial_prompt_template: "You help the team."
## Personas
persona_critic: @critic.md
## Documents
Read before you write.
guide: @docs/guide.md
notes: @docs/notes.md
"""


def written(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / "FRAMEWORK_CONTEXT.md"


def manager(folder: Path, definition: str, options: ContextOptions | None = None, **files: str | bytes) -> DCMManager:
    named = {name.replace("__", "/").replace("_md", ".md"): content for name, content in files.items()}
    path = written(folder, {"FRAMEWORK_CONTEXT.md": definition, **named})
    made = DCMManager(str(path), options=options)
    made.initialize()
    return made


def whole(folder: Path, options: ContextOptions | None = None) -> DCMManager:
    return manager(folder, DEFINITION, options, docs__guide_md="Guide.", docs__notes_md="Notes.", critic_md="Doubt.")


def test_what_a_definition_names_can_be_asked_for(tmp_path: Path) -> None:
    context = whole(tmp_path)
    assert context.get_initial_prompt() == "You help the team."
    assert context.get_document_content("guide") == context.get_document_content(" Guide ") == "Guide."
    assert context.get_context_section("documents") == "Read before you write."
    assert context.get_document_content("nothing") is context.get_context_section("nothing") is None
    assert context.persona_ids() == ["critic"]
    assert context.get_persona("critic") == context.get_persona("persona_critic") == "Doubt."
    assert context.get_persona("guide") is None
    assert context.warnings == ()


@pytest.mark.fault("context: a missing document")
def test_a_missing_document_is_a_warning_with_file_and_line_and_the_rest_is_there(tmp_path: Path) -> None:
    context = manager(tmp_path, DEFINITION, docs__notes_md="Notes.", critic_md="Doubt.")
    assert context.warnings == ("FRAMEWORK_CONTEXT.md:6: docs/guide.md: it cannot be read: No such file or directory",)
    assert context.get_document_content("guide") is None
    assert context.get_document_content("notes") == "Notes."


@pytest.mark.fault("context: a missing or unreadable definition")
def test_a_definition_that_cannot_be_read_is_an_initialisation_error(tmp_path: Path) -> None:
    written(tmp_path, {"binary.md": b"\xff\xfe\x00", "big.md": "x" * 2000})
    for name, words in (
        ("none.md", "No such file"),
        ("binary.md", "UTF-8"),
        ("big.md", "2,000 bytes"),
        ("", "Is a directory"),
    ):
        with pytest.raises(DCMInitError, match=words) as caught:
            DCMManager(str(tmp_path / name), options=ContextOptions(max_document_bytes=1000)).initialize()
        assert isinstance(caught.value, ComponentInitError)
        assert isinstance(caught.value, FrameworkError)
    with pytest.raises(DCMInitError, match="initialize"):
        DCMManager(str(tmp_path / "FRAMEWORK_CONTEXT.md")).get_initial_prompt()


@pytest.mark.fault("context: `..` in a document's path")
@pytest.mark.fault("context: an absolute path")
@pytest.mark.fault("context: a symbolic link out of the folder")
@pytest.mark.fault("context: a definition that contains itself, a circle of links")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a: @../secret.md", "leads out of"),
        ("a: @../secret.md", "context.allow_parent_traversal"),
        ("a: @docs/../../secret.md", "leads out of"),
        ("- A: @/../secret.md", "leads out of"),
        ("a: @/etc/passwd", "context.allow_absolute_paths"),
        ("- A: @//etc/passwd", "absolute"),
        ("a: @link.md", "symbolic link that leads out"),
        ("a: @linked/secret.md", "symbolic link that leads out"),
        ("a: @circle.md", "symbolic links"),
        ("a: @FRAMEWORK_CONTEXT.md", "contain itself"),
        ("a: @self.md", "contain itself"),
        ("a: @docs", "Is a directory"),
        ("a: @pipe", "not a regular file"),
        ("- A: @/etc/passwd", "No such file"),
    ],
)
def test_a_path_that_leads_elsewhere_is_refused_with_its_line(tmp_path: Path, line: str, words: str) -> None:
    folder = tmp_path / "context"
    (folder / "docs").mkdir(parents=True)
    written(tmp_path, {"secret.md": "secret"})
    (folder / "link.md").symlink_to(tmp_path / "secret.md")
    (folder / "linked").symlink_to(tmp_path)
    (folder / "circle.md").symlink_to("circle.md")
    (folder / "self.md").symlink_to("FRAMEWORK_CONTEXT.md")
    os.mkfifo(folder / "pipe")
    context = manager(folder, f"## S\n{line}\n")
    assert len(context.warnings) == 1
    assert context.warnings[0].startswith("FRAMEWORK_CONTEXT.md:2: ")
    assert words in context.warnings[0]
    assert context.get_document_content("a") is None


def test_links_within_the_folder_are_followed_and_paths_outside_where_they_are_allowed(tmp_path: Path) -> None:
    written(tmp_path, {"secret.md": "shared", "context/real/guide.md": "Guide."})
    (tmp_path / "context" / "guide.md").symlink_to("real/guide.md")
    options = ContextOptions(allow_parent_traversal=True, allow_absolute_paths=True)
    definition = f"a: @../secret.md\nb: @{tmp_path}/secret.md\nguide: @guide.md\n"
    context = manager(tmp_path / "context", definition, options)
    assert [context.get_document_content(name) for name in ("a", "b", "guide")] == ["shared", "shared", "Guide."]


@pytest.mark.fault("context: a document of 100 MB")
@pytest.mark.fault("context: a binary document")
def test_binary_and_huge_documents_are_refused(tmp_path: Path) -> None:
    with open(tmp_path / "huge.md", "wb") as huge:
        huge.truncate(100 * 2**20)
    definition = "a: @a.md\nb: @b.md\nc: @c.md\nhuge: @huge.md\n"
    found = manager(tmp_path, definition, a_md=b"PNG\0\0", b_md=b"caf\xe9", c_md=b"\xff\xfea\0").warnings
    words = ("binary", "not UTF-8", "binary", "104,857,600 bytes; 1,048,576 are allowed")
    assert [word in warning for word, warning in zip(words, found, strict=True)] == [True] * 4


def changed(path: Path, content: str) -> None:
    before = path.stat().st_mtime_ns
    path.write_text(content)
    os.utime(path, ns=(before + 10**9, before + 10**9))


@pytest.mark.fault("context: a definition that vanishes while the server runs")
@pytest.mark.parametrize("cached", [100, 0])
def test_edits_are_taken_up_and_a_vanished_definition_stays_in_use(tmp_path: Path, cached: int) -> None:
    options = ContextOptions(cached_documents=cached)
    context = manager(tmp_path, DEFINITION, options, docs__notes_md="Notes.", critic_md="Doubt.")
    assert not context.reload()
    written(tmp_path, {"docs/guide.md": "Guide."})
    assert context.reload()
    assert (context.warnings, context.get_document_content("guide")) == ((), "Guide.")
    changed(tmp_path / "docs/guide.md", "Better guide.")
    assert context.get_document_content("guide") == "Better guide."
    (tmp_path / "docs/guide.md").unlink()
    assert context.get_document_content("guide") is None
    changed(tmp_path / "FRAMEWORK_CONTEXT.md", "notes: @docs/notes.md\n")
    assert context.reload()
    assert (context.get_initial_prompt(), list(context.documents)) == (None, ["notes"])
    (tmp_path / "FRAMEWORK_CONTEXT.md").unlink()
    assert not context.reload()
    assert list(context.documents) == ["notes"]


def test_the_prompt_holds_first_words_persona_sections_and_documents_and_names_what_has_no_room(tmp_path: Path) -> None:
    made = context_prompt(whole(tmp_path), "critic")
    assert made.text == (
        'You help the team.\n\nDoubt.\n\n<section id="documents">\nRead before you write.\n</section>\n\n'
        '<document id="guide">\nGuide.\n</document>\n\n'
        '<document id="notes">\nNotes.\n</document>'
    )
    assert "Doubt." not in context_prompt(whole(tmp_path)).text
    definition = "## Rules\n" + "Never guess. " * 50 + "\n## Style\nBe brief.\nguide: @guide.md\nnotes: @notes.md\n"
    options = ContextOptions(max_prompt_bytes=200)
    context = manager(tmp_path, definition, options, guide_md="x" * 500, notes_md="Notes.")
    made = context_prompt(context)
    assert made.left_out == ("rules", "guide")
    assert made.text == '<section id="style">\nBe brief.\n</section>\n\n<document id="notes">\nNotes.\n</document>'
    assert context.get_passage("guide") == "x" * 500
    assert (context.get_passage("rules") or "").startswith("Never guess.")


def test_a_section_and_a_document_of_one_name_are_one_passage(tmp_path: Path) -> None:
    context = manager(tmp_path, "## Guide\nProse.\nguide: @guide.md\n", ContextOptions(max_prompt_bytes=0),
                      guide_md="Guide.")  # fmt: skip
    assert context_prompt(context).left_out == ("guide",)
    assert context.get_passage("guide") == "Prose.\n\nGuide."
    assert context.get_passage("nothing") is None


@pytest.mark.parametrize("definition", [
    "## Initial Prompt\nYou help the team.\n", "## Initial Prompt\n```\nYou help the team.\n```\n",
])  # fmt: skip
def test_the_initial_prompt_is_in_the_prompt_once(tmp_path: Path, definition: str) -> None:
    assert context_prompt(manager(tmp_path, definition)).text == "You help the team."


async def test_a_running_server_takes_up_edits_and_new_personas_within_two_seconds(tmp_path: Path) -> None:
    clock = FakeClock()
    live = LiveContext(whole(tmp_path), clock=clock.now)
    before = await live.prompt()
    changed(tmp_path / "docs/guide.md", "Better guide.")
    assert await live.prompt() == before
    await clock.advance(CHECK_SECONDS)
    assert "Better guide." in (await live.prompt()).text
    assert await live.personas() == {"critic": "Doubt."}
    with pytest.raises(InvalidRequest, match=r"no persona .poet.\. There are: critic\."):
        await live.prompt("poet")
    (tmp_path / "poet.md").write_text("Rhyme.")
    changed(tmp_path / "FRAMEWORK_CONTEXT.md", DEFINITION.replace("## Doc", "persona_poet: @poet.md\n## Doc"))
    await clock.advance(CHECK_SECONDS)
    assert "Rhyme." in (await live.prompt("Persona Poet")).text
    assert await live.personas() == {"critic": "Doubt.", "poet": "Rhyme."}
