"""The page about the console matches the program: commands, options, replies, exit codes, and its examples."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from task.cli import Exit
from task.cli.app import app
from task.console.configuration import ConfigurationManager
from task.console.slash.table import COMMANDS
from task.conversation.inputs import typed_answer

PAGE = (Path(__file__).parents[2] / "docs" / "console.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(text: str) -> list[tuple[str, str]]:
    cells = re.findall(r"^\| (.+?) \| (.+) \|$", text.replace("\\|", "\0"), re.MULTILINE)
    return [(first.replace("\0", "|"), second) for first, second in cells]


def test_the_table_of_commands_is_that_of_the_program() -> None:
    listed = rows(section("Commands"))[1:]
    assert listed == [(f"`{command.usage}`", command.help) for command in COMMANDS.values()]


def test_the_commands_that_run_at_any_time_are_named() -> None:
    named = re.findall(
        r"`(/\w+)`", section("Commands").partition("While an answer is written, ")[2].partition(" work ")[0]
    )
    assert named == [name for name, command in COMMANDS.items() if command.during_turn and name != "/exit"]


def test_every_option_is_described() -> None:
    chat = typer.main.get_command(app).commands["chat"]  # type: ignore[attr-defined]
    options = {option for parameter in chat.params for option in parameter.opts} - {"--help"}
    assert set(re.findall(r"`(--?[a-z]+)[ `]", PAGE.partition("\n## ")[0])) == options


def test_the_replies_are_those_that_a_card_takes() -> None:
    replies = [reply for cell, _ in rows(section("Approvals"))[1:] for reply in re.findall("`(.+?)`", cell)]
    assert replies == ["y", "n", "n because …", "a", "e"]
    answers = [typed_answer(reply) for reply in replies[:-1]]
    assert [answer and (answer.allowed, answer.reason, answer.always) for answer in answers] == [
        (True, "", False), (False, "", False), (False, "…", False), (True, "", True),
    ]  # fmt: skip


def test_the_exit_codes_exist() -> None:
    assert {int(code) for code, _ in rows(section("In scripts").partition("\n### ")[0])[1:]} <= set(map(int, Exit))


def test_the_configuration_is_valid_and_says_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    file = tmp_path / "config.yaml"
    file.write_text(section("Configuration").partition("```yaml\n")[2].partition("```")[0])
    settings = ConfigurationManager(str(file)).settings
    assert (settings.backend, settings.deployment_name, settings.history.pruning_strategy) == (
        "openai", "gpt-4o", "summarize",
    )  # fmt: skip
    assert f"within {settings.teps.confirmation_seconds:g} seconds" in section("Approvals")
