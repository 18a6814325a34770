"""The command line: exit codes, one line for what is wrong, and a quick help."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from task.commands.core_config import OWN_CONFIG, rendered, write_private
from task.commands.ports import free_port
from task.errors import SettingsError


def dial_agent(home: Path, *arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    variables = {"HOME": str(home), "PYTHONPATH": str(Path.cwd()), "COLUMNS": "120", **environ}
    return subprocess.run(
        [sys.executable, "-m", "task", *arguments],
        cwd=home, env=variables, input=stdin, capture_output=True, text=True, timeout=30,
    )  # fmt: skip


def test_help_is_there_at_once(tmp_path: Path) -> None:
    began = time.monotonic()
    shown = dial_agent(tmp_path, "--help")
    assert time.monotonic() - began < 2  # 0.3 s on a machine that does nothing else
    assert shown.returncode == 0
    for command in ("up", "serve", "core", "ask", "doctor", "tools", "core-config"):
        assert f" {command} " in shown.stdout


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    code = "import sys, task.cli; print(sorted({'aiohttp', 'pydantic', 'aidial_sdk', 'uvicorn'} & set(sys.modules)))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert shown.stdout.strip() == "[]"


@pytest.mark.parametrize("command", ["up", "serve", "core", "tools"])
def test_a_wrong_setting_stops_every_command_with_one_line_and_exit_code_2(tmp_path: Path, command: str) -> None:
    shown = dial_agent(tmp_path, command, AGENT_LIMITS__STEP="3")
    assert shown.returncode == 2
    (line,) = shown.stderr.splitlines()
    assert line.startswith("AGENT_LIMITS__STEP in the environment is not a setting; the nearest is AGENT_LIMITS__STEPS")


def test_an_unknown_command_is_a_usage_error(tmp_path: Path) -> None:
    shown = dial_agent(tmp_path, "frobnicate")
    assert shown.returncode == 2
    assert "frobnicate" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["  "], "The question is empty"),
        (["-"], "The question is empty"),
        (["Hi", "--file", "nowhere.csv"], "--file nowhere.csv cannot be read: No such file"),
        (["Hi", "--file", "."], "--file . is a folder"),
        (["Hi", "--endpoint", "core:8080"], "DIAL_ENDPOINT on the command line: it must be an address"),
        (["Hi", "--endpoint", "https://dial.example"], "DIAL_API_KEY is not set"),
    ],
)
def test_what_cannot_be_asked_is_one_line_and_exit_code_2(tmp_path: Path, arguments: list[str], says: str) -> None:
    shown = dial_agent(tmp_path, "ask", *arguments)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith(says)
    assert len(shown.stderr.splitlines()) == 1


def test_asking_a_product_that_does_not_run_says_how_to_start_it(tmp_path: Path) -> None:
    shown = dial_agent(tmp_path, "ask", "Hi", AGENT_CORE_PORT=str(free_port("127.0.0.1")))
    assert shown.returncode == 3
    assert "start the product with `make run`" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_core_config_fills_in_the_environment_and_the_dotenv_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("OPENAI_API_KEY=from-dotenv\n")
    shown = dial_agent(tmp_path, "core-config", DIAL_API_KEY='quo"ted')
    config = json.loads(shown.stdout)
    assert list(config["keys"]) == ['quo"ted']
    assert "from-dotenv" in shown.stdout
    assert "${" not in shown.stdout


def test_core_config_names_what_is_missing(tmp_path: Path) -> None:
    shown = dial_agent(tmp_path, "core-config", OPENAI_API_KEY="k")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith("DIAL_API_KEY: not set, but config.json needs it")


def test_a_written_core_config_is_its_owners_alone_unless_told_otherwise(tmp_path: Path) -> None:
    text = rendered(OWN_CONFIG, {"DIAL_API_KEY": "k", "OPENAI_API_KEY": "o"})
    for mode in (0o600, 0o644):
        write_private(tmp_path / "config.json", text, mode)
        assert (tmp_path / "config.json").stat().st_mode & 0o777 == mode
    with pytest.raises(SettingsError, match="--output"):
        write_private(tmp_path / "nowhere" / "config.json", text)
