"""Settings that have no effect yet: marked once, and named where a person sets them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from task.settings import Settings, load_settings
from task.settings.sources import settings_of
from tests.support.settings_reads import keys_in, read_keys

MARKED = {setting.key for setting in settings_of(Settings, "") if setting.waits_for}
ALL = {setting.key for setting in settings_of(Settings, "")}


def test_every_setting_is_read_or_marked_as_without_effect_and_none_is_both() -> None:
    read = read_keys()
    assert read & MARKED == set(), "these have an effect: remove `waits_for`"
    assert ALL - read - MARKED == set(), "nothing reads these: mark them with `waits_for`, or remove them"


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
        ("ui: {show_timestamps: true}", {}, ("ui.show_timestamps in dial-agent.yaml waits for the console",)),
        ("teps: {secure_mode: true}", {}, ("teps.secure_mode in dial-agent.yaml waits for the workspace tools",)),
        ("", {"AGENT_CONSOLE__NAME": "Desk"}, ("AGENT_CONSOLE__NAME in the environment waits for the console",)),
        ("", {"AGENT_CONSOLE__NAME": ""}, ()),
        ("advanced: {icerc_timeout: 9}\nteps_settings: {bash: {working_directory: /srv}}", {},
         ("advanced.icerc_timeout in dial-agent.yaml waits for the console",
          "teps_settings.bash.working_directory in dial-agent.yaml waits for the workspace tools")),
    ],
)  # fmt: skip
def test_what_somebody_set_without_effect_is_named_as_its_source_spells_it(
    tmp_path: Path, document: str, environ: Mapping[str, str], named: tuple[str, ...]
) -> None:
    (tmp_path / "dial-agent.yaml").write_text(document, encoding="utf-8")
    assert load_settings(environ=environ, directory=tmp_path).without_effect == named
