"""Every setting has its effect, and those of the console are named where they have none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from task.settings import Settings, load_settings
from task.settings.sources import settings_of
from tests.support.settings_reads import keys_in, read_keys

CONSOLE = {setting.key for setting in settings_of(Settings, "") if setting.console}
# The documented views that `MessageManager` and `UserInterfaceManager` are made from read these as a whole.
VIEWED = ("console.", "history.")
ALL = {setting.key for setting in settings_of(Settings, "")}


def test_every_setting_is_read() -> None:
    unread = ALL - read_keys()
    assert {key for key in unread if not (key in CONSOLE and key.startswith(VIEWED))} == set(), "nothing reads these"


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("settings.log_level", {"log_level"}),
        ("product._settings.teps.secure_mode", {"teps.secure_mode"}),
        ("shell, limits = settings.teps.bash, settings.limits\nshell.working_directory, limits.steps",
         {"teps.bash.working_directory", "limits.steps"}),
        ("def f(given: ConsoleSettings):\n    return given.name", {"console.name"}),
        ("async def f(settings: ConsoleSettings):\n    return settings.version", {"console.version"}),
        ("settings.teps.file_read.model_dump()", {"teps.file_read.allowed_extensions", "teps.file_read.max_file_size"}),
        ("settings.store_options, tool.name, settings.model_copy()", set[str]()),
    ],
)  # fmt: skip
def test_the_search_for_reads_finds_sections_behind_variables(source: str, keys: set[str]) -> None:
    assert keys_in(source) == keys


@pytest.mark.parametrize(
    ("document", "environ", "named"),
    [
        ("", {}, ()),
        ("log_level: debug\nteps: {allowed_tools: [calculator]}", {}, ()),
        ("ui: {show_timestamps: true}", {}, ("ui.show_timestamps in dial-agent.yaml",)),
        ("teps: {secure_mode: true}", {}, ("teps.secure_mode in dial-agent.yaml",)),
        ("", {"AGENT_CONSOLE__NAME": "Desk"}, ("AGENT_CONSOLE__NAME in the environment",)),
        ("", {"AGENT_CONSOLE__NAME": ""}, ()),
        ("advanced: {icerc_timeout: 9}\nteps_settings: {bash: {working_directory: /srv}}", {},
         ("advanced.icerc_timeout in dial-agent.yaml",
          "teps_settings.bash.working_directory in dial-agent.yaml")),
    ],
)  # fmt: skip
def test_what_somebody_set_for_the_console_is_named_as_its_source_spells_it(
    tmp_path: Path, document: str, environ: Mapping[str, str], named: tuple[str, ...]
) -> None:
    (tmp_path / "dial-agent.yaml").write_text(document, encoding="utf-8")
    assert load_settings(environ=environ, directory=tmp_path).for_the_console == named
