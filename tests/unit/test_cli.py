"""The command line: exit codes, one line for what is wrong, and a quick help."""

import json
import os
import resource
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from task.cli import MEANINGS, Exit
from task.cli.addresses import key_for
from task.cli.ask import Question, check
from task.cli.core_config import OWN_CONFIG, config_fragment, render_config, replace_file
from task.errors import InvalidRequest, SettingsError
from task.settings import Settings

ROOT = Path(__file__).parents[2]


def dial_agent(home: Path, *arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {"HOME": str(home), "PYTHONPATH": str(ROOT), "COLUMNS": "120", **environ}
    return subprocess.run(
        [sys.executable, "-m", "task", *arguments],
        cwd=home, env=variables, input=stdin, capture_output=True, encoding="utf-8", timeout=30,
    )  # fmt: skip


def test_help_is_shown_at_once_and_lists_every_exit_code_as_the_page_does(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    shown = dial_agent(tmp_path, "--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2  # 0.3 s on an idle machine
    assert shown.returncode == 0
    for command in ("up", "serve", "core", "ask", "doctor", "tools", "core-config"):
        assert f" {command} " in shown.stdout
    page = (ROOT / "docs" / "setup.md").read_text()
    assert set(MEANINGS) == set(Exit)
    for code, meaning in MEANINGS.items():
        assert f"{code} {meaning}" in " ".join(shown.stdout.split())
        assert f"| {code} | {meaning} |" in page
    assert dial_agent(tmp_path, "--version").stdout == f"dial-agent {version('dial-general-purpose-agent')}\n"


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_wrong_setting_stops_a_command_with_one_line_and_exit_code_2(tmp_path: Path, command: str) -> None:
    shown = dial_agent(tmp_path, command, AGENT_LIMITS__STEP="3")
    assert shown.returncode == 2
    (line,) = shown.stderr.splitlines()
    assert line.startswith("AGENT_LIMITS__STEP in the environment is not a setting; the nearest is AGENT_LIMITS__STEPS")


def test_an_unknown_command_and_an_empty_question_are_usage_errors(tmp_path: Path) -> None:
    unknown = dial_agent(tmp_path, "frobnicate")
    assert (unknown.returncode, "frobnicate" in unknown.stderr) == (2, True)
    empty = dial_agent(tmp_path, "ask", "-", stdin="\n")
    assert (empty.returncode, empty.stdout) == (2, "")
    assert empty.stderr.splitlines() == ["The question is empty; write it in quotes after `ask`."]


@pytest.mark.parametrize(
    ("text", "file", "message"),
    [
        (" \n", None, "The question is empty"),
        ("Hi", "nowhere.csv", "nowhere.csv cannot be read: No such file"),
        ("Hi", "folder", "folder is a folder"),
        ("Hi", "pipe", "pipe is not a file"),
        ("Hi", "x" * 300, "cannot be read: File name too long"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_sent(
    tmp_path: Path, text: str, file: str | None, message: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InvalidRequest) as caught:
        check(Question(text, (tmp_path / file,) if file else ()))
    assert message in str(caught.value)


def test_this_installations_key_is_for_this_machine_only(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert key_for(settings, "http://127.0.0.1:8080") == key_for(settings, "http://localhost:9")
    with pytest.raises(SettingsError, match="DIAL_API_KEY is not set"):
        key_for(settings, "https://dial.example")


@pytest.mark.fault("compose: a variable of docker compose or of Core's configuration that is not set")
def test_core_config_fills_in_the_environment_and_the_dotenv_file_or_names_what_is_missing(tmp_path: Path) -> None:
    missing = dial_agent(tmp_path, "core-config", OPENAI_API_KEY="k")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith("DIAL_API_KEY: not set, but config.json needs it")
    (tmp_path / ".env").write_text("OPENAI_API_KEY=from-dotenv\n")
    given = ("--core-version", "0.25", "--agent", "http://other:1/")
    shown = dial_agent(tmp_path, "core-config", *given, DIAL_API_KEY='quo"ted')
    config = json.loads(shown.stdout)
    assert list(config["keys"]) == ['quo"ted']
    assert ("from-dotenv" in shown.stdout, "${" in shown.stdout, "toolsets" in config) == (True, False, False)
    assert config["applications"]["general-purpose-agent"]["endpoint"].startswith("http://other:1/openai/")


def test_the_fragment_for_an_existing_core_needs_no_key_and_has_this_agents_address(tmp_path: Path) -> None:
    shown = dial_agent(tmp_path, "core-config", "--fragment", AGENT_PORT="6001")
    fragment = json.loads(shown.stdout)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert fragment.keys() == {"applications", "roles"}
    agent = "http://127.0.0.1:6001/openai/deployments/general-purpose-agent"
    application = fragment["applications"]["general-purpose-agent"]
    assert application["endpoint"] == f"{agent}/chat/completions"
    assert application["features"]["configurationEndpoint"] == f"{agent}/configuration"
    assert fragment["roles"] == {"default": {"limits": {"general-purpose-agent": {}}}}
    assert "localhost:3001" not in shown.stdout
    assert "gpt-4o" not in shown.stdout
    older = dial_agent(tmp_path, "core-config", "--fragment", "--core-version", "0.25").stdout
    features = json.loads(older)["applications"]["general-purpose-agent"]["features"]
    assert application["features"].keys() - features.keys() == {"assistantAttachmentsInRequestSupported"}


def test_the_fragment_takes_the_address_at_which_another_machines_core_reaches_the_agent(tmp_path: Path) -> None:
    named = dial_agent(tmp_path, "core-config", "--fragment", "--agent", "https://agent.example/")
    own = dial_agent(tmp_path, "core-config", "--fragment", DIAL_ENDPOINT="https://core.example")
    endpoint = json.loads(named.stdout)["applications"]["general-purpose-agent"]["endpoint"]
    assert endpoint.startswith("https://agent.example/openai/")
    assert (
        own.stderr
        == "https://core.example must reach this agent at http://127.0.0.1:5030; --agent names another address.\n"
    )
    assert json.loads(own.stdout)


@pytest.mark.fault("model: a fragment of something that is no configuration, or for an address that is none")
@pytest.mark.parametrize("arguments", [("--agent", "host:5030"), ("--core-version", "0.24")])
def test_an_address_or_a_version_that_cannot_be_used_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    shown = dial_agent(tmp_path, "core-config", *arguments)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert arguments[0] in shown.stderr


@pytest.mark.fault("model: a fragment of something that is no configuration, or for an address that is none")
def test_a_fragment_of_something_else_is_refused() -> None:
    for content in ("[]", "{", "{}", '{"applications": {"a": 1}, "roles": {}}', '{"applications": {}, "roles": []}'):
        with pytest.raises(SettingsError, match=r"odd\.json is not a configuration"):
            config_fragment(content, "http://agent:1", Path("odd.json"))


def test_a_written_core_config_is_readable_by_its_owner_only_unless_another_mode_is_given(tmp_path: Path) -> None:
    text = render_config(OWN_CONFIG, {"DIAL_API_KEY": "k", "OPENAI_API_KEY": "o"})
    for mode in (0o600, 0o644):
        replace_file(tmp_path / "config.json", text, mode)
        assert (tmp_path / "config.json").stat().st_mode & 0o777 == mode
    with pytest.raises(SettingsError, match="--output"):
        replace_file(tmp_path / "nowhere" / "config.json", text)
