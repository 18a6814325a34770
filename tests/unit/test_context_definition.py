"""Context definitions: both formats, and malformed parts are reported with their line."""

from __future__ import annotations

import pytest

from task.context.definition import Definition, Reference, parse

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


def test_headings_can_be_marked_otherwise() -> None:
    found = parse("=== Rules ===\nBe kind.\n", r"^=== (.+) ===$")
    assert dict(found.sections) == {"rules": "Be kind."}


def problems(text: str) -> list[tuple[int, str]]:
    return list(parse(text).problems)


@pytest.mark.fault("context: a block or text that is never closed")
def test_problems_name_their_line() -> None:
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


def test_a_byte_order_mark_windows_lines_and_nothing_at_all_are_fine() -> None:
    assert parse("\ufeff## S\r\na: @x.md\r\n").references[0].path == "x.md"
    assert parse("") == Definition()


@pytest.mark.fault("context: endless lines and thousands of documents")
def test_endless_lines_and_thousands_of_documents_end() -> None:
    assert parse(" " * 10**6 + "x: @y").references == ()
    found = parse("\n".join(f"d{number}: @{number}.md" for number in range(1500)))
    assert (len(found.references), len(found.problems)) == (1000, 500)
