"""What the console draws, and that its page describes the program."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.cells import cell_len
from rich.console import RenderableType

from task.approvals.approvals import typed_answer
from task.cli import Exit
from task.cli.chat import app
from task.console.configuration import ConfigurationManager
from task.console.slash.table import COMMANDS
from task.console.terminal.answer import MOST_CHARS, Look, MarkdownBlock, MarkdownBlocks, RunView, masked, result_lines
from task.console.terminal.rendering import Colors, TerminalMarkdown, ansi, colors_of, one_line, safe
from task.store.records import Event

COLOR = re.compile(r"\x1b\[[0-9;]*m")
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")

ATTACKS = {
    "\x1b[31mred\x1b[0m": "red",
    "\x1b]0;title\x07after": "after",
    "\x1b]52;c;ZXZpbA==\x1b\\after": "after",
    "\x1b]8;;http://evil.example\x1b\\link\x1b]8;;\x1b\\": "link",
    "\x1bP+q544e\x1b\\after": "after",
    "\x1b_Ga=T;AAAA\x1b\\after": "after",
    "\x9b31mred": "red",
    "\x9d0;title\x9cafter": "after",
    "\x1bcreset": "reset",
    "a\x1b": "a",
    "over\rwritten": "over\ufffdwritten",
    "a\x08b\x07c\x00d\x7fe\x85f": "a\ufffdb\ufffdc\ufffdd\ufffde\ufffdf",
    "txt.\u202egnp": "txt.\ufffdgnp",
    "\u2066hidden\u2069": "\ufffdhidden\ufffd",
    "tag\U000e0041": "tag\ufffd",
    "half \ud83d": "half \ufffd",
    "line\r\nnext": "line\nnext",
    "👨‍👩‍👧 می‌خواهم é": "👨‍👩‍👧 می‌خواهم é",  # joiners that belong to emoji and words
}


def drawn(parts: Iterable[RenderableType], columns: int = 60, colors: Colors = None) -> str:
    return "".join(ansi(part, columns, colors) for part in parts)


def shown(events: Sequence[tuple[str, dict[str, Any]]], look: Look | None = None, *, debug: bool = False) -> str:
    """What is printed of these events, in the order in which it becomes final."""
    answer = RunView(look or Look(), lambda: debug)
    parts: list[RenderableType] = []
    for number, (kind, data) in enumerate(events, 1):
        answer.show(Event(number, kind, data))
        parts += answer.finished()
    return drawn(parts)


def text(*pieces: str) -> list[tuple[str, dict[str, Any]]]:
    return [("text", {"text": piece}) for piece in pieces]


def stage(number: int, name: str, result: str = "", *, parent: int | None = None) -> list[tuple[str, dict[str, Any]]]:
    content = f"## Request arguments:\n\n**X**: 1\n\n## Response:\n\n{result}\n"
    opened = {"stage": number, "parent": parent, "name": name}
    return [("stage_opened", opened), ("stage_text", {"stage": number, "text": content})]


def closed(number: int, name: str, status: str = "completed") -> tuple[str, dict[str, Any]]:
    return ("stage_closed", {"stage": number, "name": f"{name} [0.25s]", "status": status})


def finished(status: str = "finished", **more: Any) -> tuple[str, dict[str, Any]]:
    return ("finished", {"status": status, "run_id": "run_1", "session_id": None, **more})


@pytest.mark.fault(
    "console terminal: control sequences, C1 and bidi characters in the text of models and tools, in titles, "
    "entities and file names"
)
@pytest.mark.parametrize(("attack", "left"), ATTACKS.items())
def test_nothing_in_a_text_acts_on_the_terminal(attack: str, left: str) -> None:
    assert safe(attack) == left


@pytest.mark.fault(
    "console terminal: control sequences, C1 and bidi characters in the text of models and tools, in titles, "
    "entities and file names"
)
@pytest.mark.parametrize("attack", [*ATTACKS, "&#27;[31m", "&#x9b;31m", "&#8238;"])
@pytest.mark.parametrize("place", ["{}", "# {}", "`{}`", "```\n{}\n```", "| {} |\n|--|\n| {} |", "- {}", "![{}]({})"])
def test_markdown_brings_no_sequence_but_colours(attack: str, place: str) -> None:
    source = place.replace("{}", attack)
    assert not CONTROLS.search(COLOR.sub("", drawn([TerminalMarkdown(source)], colors="256")))
    assert not CONTROLS.search(drawn([TerminalMarkdown(source)]))


@pytest.mark.fault("console terminal: a link whose text names another address")
def test_a_link_shows_where_it_leads_and_a_number_or_a_sign_alone_is_not_an_empty_list() -> None:
    assert "(https://evil.example/x)" in drawn([TerminalMarkdown("[https://bank.example](https://evil.example/x)")])
    for source in ("1175.", "7)", "-", "*", "1175.\n\nThat is it."):
        assert drawn([TerminalMarkdown(source)]) == f"{source}\n"
    lines = drawn([TerminalMarkdown("3. a\n4.\n5. b")]).splitlines()
    assert [line.split() for line in lines] == [["3", "a"], ["4."], ["5", "b"]]


@pytest.mark.fault("console terminal: a window of 20 or 60 columns, wide characters, no colours")
@pytest.mark.parametrize("columns", [20, 40, 60])
def test_no_line_is_wider_than_the_window(columns: int) -> None:
    source = (
        "# A heading of many words that is longer than a narrow window\n\nSome words 日本語の文章 👩‍🔬 " * 3
        + "\n\n- " + "x" * 90 + "\n\n| a | b | c |\n|---|---|---|\n| " + "many words " * 9 + "| 日本語 | 3 |\n\n"
        + "```python\n" + "print('a long line of code', " * 5 + ")\n```\n\n> " + "quoted words " * 9
    )  # fmt: skip
    lines = drawn([TerminalMarkdown(source)], columns).splitlines()
    assert max(cell_len(line) for line in lines) <= columns


@pytest.mark.fault("console terminal: a window of 20 or 60 columns, wide characters, no colours")
@pytest.mark.parametrize(
    ("environment", "enabled", "colors"),
    [
        ({"TERM": "xterm-256color"}, True, "256"),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, True, "256"),
        ({"TERM": "linux"}, True, "standard"),
        ({"TERM": "xterm-256color", "NO_COLOR": "1"}, True, None),
        ({"TERM": "dumb"}, True, None),
        ({}, True, None),
        ({"TERM": "xterm-256color"}, False, None),
    ],
)
def test_colours_are_those_of_the_terminal_and_can_be_turned_off(
    environment: dict[str, str], enabled: bool, colors: Colors
) -> None:
    assert colors_of(environment, enabled=enabled) == colors
    assert bool(COLOR.search(drawn([TerminalMarkdown("**bold** `code`")], colors=colors))) is (colors is not None)


def in_blocks(source: str, size: int = 3) -> tuple[list[MarkdownBlock], int]:
    """The blocks of a streamed text, and the most that was pending between two pieces."""
    blocks, most, found = MarkdownBlocks(), 0, list[MarkdownBlock]()
    for place in range(0, len(source), size):
        found += blocks.add(source[place : place + size])
        most = max(most, len(blocks.pending))
    return [*found, *blocks.end()], most


def test_text_is_cut_where_a_block_ends() -> None:
    source = "# T\nwords\n\n- a\n\n- b\n\n  more\n\n1. x\n```py\na\n\nb\n```\nafter\n\n| a |\n|--|\n| 1 |\n\nend\n"
    found, _ = in_blocks(source)
    assert [block.text.strip() for block in found] == [
        "# T\nwords", "- a\n\n- b\n\n  more", "1. x", "```py\na\n\nb\n```", "after", "| a |\n|--|\n| 1 |", "end",
    ]  # fmt: skip


ENDLESS = {
    "a table": "| a | b |\n|---|---|\n" + "| some words | 1 |\n" * 3_000,
    "code": "```python\n" + "print('some words')\n\n" * 3_000,
    "a list": "- some words\n" * 4_000,
    "a paragraph": "some words\n" * 5_000,
    "a line": "some words " * 5_000,
    "a quote": "> some words\n" * 4_000,
}


@pytest.mark.fault("console terminal: a table, code, list, paragraph or line that never ends")
@pytest.mark.parametrize("kind", ENDLESS)
def test_what_never_ends_is_printed_in_parts_and_each_part_once(kind: str) -> None:
    source = ENDLESS[kind]
    found, most = in_blocks(source, 40)
    printed = sum(len(block.text) for block in found)
    assert most <= MOST_CHARS + 100  # so that a picture of it costs the same however long the answer is
    assert printed <= 1.1 * len(source)
    words = re.findall("words|x+", "".join(block.text for block in found))
    assert "".join(words) == "".join(re.findall("words|x+", source))


def test_parallel_calls_are_shown_in_their_order_with_time_result_and_failure() -> None:
    lines = shown(
        [
            *stage(1, "web_search: the weather", "\n".join(f"line {number}" for number in range(1, 9))),
            *stage(2, "calculator: 25*47", "1175"),
            *stage(3, "fetch: page", "the page", parent=1),
            closed(2, "calculator: 25*47"), closed(3, "fetch: page"),
            closed(1, "web_search: the weather", "failed"), finished(),
        ]
    ).splitlines()  # fmt: skip
    assert [line.rstrip() for line in lines if line] == [
        "✗ Tool: web_search the weather · 0.25 s", "  line 1", "  line 2", "  line 3", "  … 5 more lines",
        "  ✓ fetch page · 0.25 s", "    the page", "✓ Tool: calculator 25*47 · 0.25 s", "  1175",
    ]  # fmt: skip


def test_a_running_call_is_shown_until_it_is_over() -> None:
    answer = RunView(Look())
    for number, (kind, data) in enumerate([*text("I look."), *stage(1, "fetch: page")], 1):
        answer.show(Event(number, kind, data))
    assert "● Tool: fetch page" in drawn(answer.unfinished())
    assert answer.activity
    answer.show(Event(9, *finished("cancelled")))
    assert answer.unfinished() == []
    assert not answer.activity
    assert "✗ Tool: fetch page" in (end := drawn(answer.finished()))
    assert "Stopped." in end


@pytest.mark.fault("console terminal: a model that dies in a table")
@pytest.mark.parametrize(
    "begun", ["| a | b |\n|---|---|\n| 1 |", "```python\nprint(", "- one\n- tw", "**bold", "[link](http"]
)
def test_what_was_written_before_the_model_died_stays(begun: str) -> None:
    failed = ("error", {"error": {"message": "The model did not go on (reference ab12cd34)."}})
    page = shown([*text(begun), failed, finished("failed")])
    assert re.findall(r"\w+", begun)[-1] in page
    assert page.rstrip().endswith("Error: The model did not go on (reference ab12cd34).")


def test_sources_are_a_numbered_list_at_the_end() -> None:
    def cited(title: str, url: str) -> tuple[str, dict[str, Any]]:
        data = {"title": title, "type": "text/markdown", "data": "words", "reference_url": url}
        return ("attachment", {"stage": None, "attachment": data})

    sources = [cited("[1] A page", "https://a.example"), cited("[2] https://b.example", "https://b.example")]
    page = shown([*text("So it is [1][2]."), *sources, finished()])
    assert page.endswith("Sources\n  [1] A page https://a.example\n  [2] https://b.example\n")


def test_prefixes_and_times_are_those_of_the_configuration() -> None:
    look = Look(assistant_prefix="Agent: ", error_prefix="Oops: ", tool_prefix="Call: ", show_timestamps=True)
    error = ("error", {"error": {"message": "no"}})
    page = shown([*stage(1, "calculator: 1+1"), closed(1, "calculator: 1+1"), *text("2"), error, finished()], look)
    assert "✓ Call: calculator 1+1" in page
    assert re.search(r"^\d\d:\d\d:\d\d Agent:\n2\n", page, re.MULTILINE)
    assert "Oops: no" in page
    assert shown(text("2\n\n3\n"), Look(assistant_prefix="")) == "\n2\n"


def test_debug_shows_each_event_without_its_secrets_and_cuts_a_large_one() -> None:
    hidden = {"api_key": "sk-1234567890abcdef", "note": "Authorization: Bearer abc.def"}
    events = [("started", hidden), *stage(1, "fetch", "a" * 1_000_000), finished()]
    page = shown(events, debug=True).replace("\n", " ")
    for part in ("debug: started", "debug: stage_text", "debug: finished"):
        assert part in page
    assert "1234567890" not in page
    assert "abc.def" not in page
    assert page.count("a") < 30_000
    assert "debug" not in shown([("started", hidden), finished()])


@pytest.mark.fault("console terminal: a secret in a debug line")
@pytest.mark.parametrize(
    "secret",
    [
        '"api_key": "hunter2"', r'\"api_key\": \"hunter2\"', '"password": "correct, hunter2"', "password=hunter2&x=1",
        "X-Token: hunter2", "Authorization: Bearer hunter2", "sk-hunter2hunter2",
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_masked(secret: str) -> None:
    assert "hunter2" not in masked(f"a {secret} b")
    assert masked("the author is known, 3 tokens") == "the author is known, 3 tokens"
    assert masked('{"prompt_tokens": 15}') == '{"prompt_tokens": 15}'


def test_results_without_a_heading_are_shown_and_requests_are_not() -> None:
    assert result_lines("```text\na\n\nb\n```\n") == ["a", "b"]
    assert result_lines("## Request arguments:\n\n**X**: 1\n") == []
    assert one_line(" a\n\tb\x1b[1m ") == "a b"


PAGE = (Path(__file__).parents[2] / "docs" / "console.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[tuple[str, str]]:
    cells = re.findall(r"^\| (.+?) \| (.+) \|$", text.replace("\\|", "\0"), re.MULTILINE)
    return [(first.replace("\0", "|"), second) for first, second in cells]


def test_the_table_of_commands_is_that_of_the_program() -> None:
    listed = rows(section("Commands"))[1:]
    assert listed == [(f"`{command.usage}`", command.help) for command in COMMANDS.values()]
    named = re.findall(
        r"`(/\w+)`", section("Commands").partition("While an answer is written, ")[2].partition(" work ")[0]
    )
    assert named == [name for name, command in COMMANDS.items() if command.during_turn and name != "/exit"]


def test_every_option_is_described_and_the_exit_codes_exist() -> None:
    assert {int(code) for code, _ in rows(section("In scripts").partition("\n### ")[0])[1:]} <= set(map(int, Exit))
    chat = typer.main.get_command(app)
    options = {option for parameter in chat.params for option in parameter.opts} - {"--help"}
    assert set(re.findall(r"`(--?[a-z]+)[ `]", PAGE.partition("\n## ")[0])) == options


def test_the_replies_are_those_that_a_card_takes() -> None:
    replies = [reply for cell, _ in rows(section("Approvals"))[1:] for reply in re.findall("`(.+?)`", cell)]
    assert replies == ["y", "n", "n because …", "a", "e"]
    answers = [typed_answer(reply) for reply in replies[:-1]]
    assert [answer and (answer.allowed, answer.reason, answer.always) for answer in answers] == [
        (True, "", False), (False, "", False), (False, "…", False), (True, "", True),
    ]  # fmt: skip


def test_the_configuration_is_valid_and_says_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    file = tmp_path / "config.yaml"
    file.write_text(section("Configuration").partition("```yaml\n")[2].partition("```")[0])
    settings = ConfigurationManager(str(file)).settings
    assert (settings.backend, settings.deployment_name, settings.history.pruning_strategy) == (
        "openai", "gpt-4o", "summarize",
    )  # fmt: skip
    assert f"within {settings.teps.confirmation_seconds:g} seconds" in section("Approvals")
