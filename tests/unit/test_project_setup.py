"""How the product is set up: the Makefile's one environment, and container files that hold together."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from task.commands.core import OWN_CONFIG, render_config
from task.conversation.messages import PICTURES
from task.documents.extract import BY_TYPE
from task.local_core.config import UNLIMITED, CoreConfig
from task.settings import Settings

ROOT = Path(__file__).parent.parent.parent
QUIET = ("--quiet", "--disable-pip-version-check")
# Answers the version question with $1, pretends to make environments, and writes down what it was asked.
INTERPRETER = """#!/bin/sh
case "$*" in
  -c*) echo {version} ;;
  up|embedding) echo "$*, torch from $AGENT_RAG__TORCH_INDEX" >> asked.txt; exit ;;
  "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python && cp "$0" .venv/bin/dial-agent ;;
  "-m venv .venv-kernel") mkdir -p .venv-kernel/bin && cp "$0" .venv-kernel/bin/python ;;
esac
echo "$*" >> asked.txt
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    for folder in ("task/embedding", "mcp_servers/python_interpreter"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "requirements.txt").touch()
    return tmp_path


def interpreter(project: Path, version: str) -> Path:
    path = project / f"python-{version}"
    path.write_text(INTERPRETER.format(version=version), encoding="utf-8")
    path.chmod(0o755)
    return path


def make(project: Path, target: str, python: Path | str, *variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", target, f"PYTHON={python}", *variables]
    return subprocess.run(
        command, cwd=project, env=environment, capture_output=True, encoding="utf-8", timeout=20, check=False
    )


def test_without_make_the_same_is_installed(project: Path) -> None:
    setup = (ROOT / "docs" / "setup.md").read_text(encoding="utf-8")
    installed = [installation(line) for line in make(project, "run", sys.executable, "-n").stdout.splitlines()]
    documented = [installation(line) for line in setup.splitlines()]
    assert set(installed) == set(documented) != {()}


def installation(command: str) -> tuple[str, ...]:
    """The environment and the requirements of a call of pip; empty for another command."""
    found = re.match(r"(\S+)/bin/(?:python -m )?pip install (.*)", command)
    return (found[1], *(word for word in shlex.split(found[2]) if word not in QUIET)) if found else ()


@pytest.mark.parametrize("version", ["2.7", "3.10", "3.14"])
def test_a_wrong_interpreter_gets_one_sentence_and_exit_code_2(project: Path, version: str) -> None:
    result = make(project, "docs", interpreter(project, version))
    (line,) = result.stderr.splitlines()
    assert result.returncode == 2
    assert "needs Python 3.11, 3.12 or 3.13" in line
    assert f"is {version}:" in line


def test_a_missing_interpreter_gets_the_same_sentence(project: Path) -> None:
    result = make(project, "docs", "no-such-python")
    (line,) = result.stderr.splitlines()
    assert (result.returncode, '"no-such-python" is missing' in line) == (2, True)


def test_the_environment_is_made_once_and_again_only_when_the_requirements_change(project: Path) -> None:
    python = interpreter(project, "ok")
    installation = "-m pip install --quiet --disable-pip-version-check -c constraints.txt -e ."
    assert make(project, "docs", python).returncode == 0
    assert make(project, "docs", python).returncode == 0
    asked = (project / "asked.txt").read_text(encoding="utf-8").splitlines()
    made = [line for line in asked if line.startswith(("-m venv", "-m pip"))]
    assert made == ["-m venv .venv", installation, f"{installation}[dev]"]

    ready = (project / ".venv" / ".ready").stat().st_mtime
    os.utime(project / "constraints.txt", (ready + 1, ready + 1))
    assert make(project, "docs", python).returncode == 0
    asked = (project / "asked.txt").read_text(encoding="utf-8").splitlines()
    assert asked.count(installation) == 2
    assert asked.count("-m venv .venv") == 1


def test_run_installs_neither_the_tests_nor_the_search_in_documents_and_the_tests_install_all(project: Path) -> None:
    python = interpreter(project, "ok")
    assert make(project, "run", python, "TORCH_INDEX=https://torch.example/cpu").returncode == 0
    asked = (project / "asked.txt").read_text(encoding="utf-8").splitlines()
    assert asked[-1] == "up, torch from https://torch.example/cpu"
    assert not any("dev" in line or "embedding" in line for line in asked)

    assert make(project, "test", python).returncode == 0
    asked = (project / "asked.txt").read_text(encoding="utf-8").splitlines()[len(asked) :]
    assert asked[:2] == ["-m pip install --quiet --disable-pip-version-check -c constraints.txt -e .[dev]",
                         "embedding, torch from "]  # fmt: skip
    assert not any("venv" in line for line in asked)


def test_clean_removes_every_environment(project: Path) -> None:
    for name in (".venv", ".venv-kernel", ".venv-embedding", "task", "mcp_servers", "tests", "scripts", "evaluation"):
        (project / name / "__pycache__").mkdir(parents=True, exist_ok=True)
    assert make(project, "clean", "python3").returncode == 0
    assert not list(project.glob(".venv*"))
    assert not list(project.rglob("__pycache__"))


COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CONFIG: dict[str, Any] = json.loads((ROOT / "core_config" / "config.json").read_text(encoding="utf-8"))
SETTINGS: dict[str, Any] = json.loads((ROOT / "core_config" / "settings.json").read_text(encoding="utf-8"))
ONE_SHOT = {"core-config"}
SECRET_NAMES = re.compile(r"KEY$|SECRET$|\.key$|\.secret$|PASSWORD|TOKEN")


def addresses(document: Any) -> set[str]:
    if isinstance(document, dict):
        return {found for value in document.values() for found in addresses(value)}
    if isinstance(document, list):
        return {found for value in document for found in addresses(value)}
    return {document} if isinstance(document, str) and "://" in document else set()


def test_the_product_is_core_chat_themes_redis_an_adapter_the_agent_and_its_two_servers() -> None:
    assert set(SERVICES) == {
        "agent", "adapter-openai", "chat", "core", "core-config", "python-interpreter", "redis", "search", "themes",
    }  # fmt: skip


def test_the_search_server_reaches_the_web_but_neither_core_nor_anything_by_right() -> None:
    service = SERVICES["search"]
    assert service["networks"] == ["web", "tools"]
    assert "default" not in service["networks"]
    assert "ports" not in service
    assert (service["read_only"], service["cap_drop"], "cap_add" in service) == (True, ["ALL"], False)
    assert set(service["environment"]) == {"AGENT_MCP_TOKEN"}


def test_code_runs_without_a_way_out_and_with_no_more_rights_than_it_takes_to_confine_it() -> None:
    service = SERVICES["python-interpreter"]
    assert COMPOSE["networks"]["tools"] == {"internal": True}
    assert service["networks"] == ["tools"]
    assert "ports" not in service
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert set(service["cap_add"]) == {"CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID"}
    assert service["pids_limit"] <= 4096
    assert set(service["environment"]) == {"AGENT_MCP_TOKEN"}


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_image_is_pinned_to_a_version(name: str) -> None:
    _, _, tag = SERVICES[name]["image"].rpartition(":")
    assert re.match(r"\d+\.\d+", tag)


def test_the_documented_ports_are_published_to_this_machine_only() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {
        "agent": ["127.0.0.1:5030:5030"],
        "chat": ["127.0.0.1:3000:3000"],
        "core": ["127.0.0.1:8080:8080"],
        "themes": ["127.0.0.1:3001:8080"],
    }


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_is_limited_and_every_lasting_one_restarts_and_is_watched(name: str) -> None:
    service = SERVICES[name]
    assert {"mem_limit", "cpus"} <= set(service)
    if name in ONE_SHOT:
        assert service["restart"] == "no"
        return
    assert service["restart"] == "unless-stopped"
    assert "healthcheck" in service or "HEALTHCHECK" in (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_no_secret_stands_in_the_file_and_a_missing_one_stops_the_start_with_its_name() -> None:
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if SECRET_NAMES.search(name):
                assert re.fullmatch(r"\$\{(\w+):\?set \1 in \.env\}", value), name


def test_the_example_environment_names_every_required_variable_without_a_value() -> None:
    required = set(re.findall(r"\$\{(\w+):\?", COMPOSE_TEXT))
    lines = (ROOT / ".env.example").read_text(encoding="utf-8").splitlines()
    given = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    assert given == dict.fromkeys(required, "")


def test_every_host_that_a_service_gets_is_a_service() -> None:
    named = addresses(CONFIG) | addresses(SETTINGS) | addresses([s.get("environment", {}) for s in SERVICES.values()])
    hosts = {urlsplit(address).hostname for address in named}
    assert hosts - {"localhost", "api.openai.com"} <= set(SERVICES)


def test_services_wait_only_for_services_that_can_become_what_is_waited_for() -> None:
    for service in SERVICES.values():
        for other, wait in service.get("depends_on", {}).items():
            expected = "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
            assert wait["condition"] == expected


def test_named_volumes_are_declared_and_mounted_files_exist() -> None:
    sources = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    files = {source for source in sources if source.startswith("./")}
    assert sources - files == set(COMPOSE["volumes"])
    assert all((ROOT / file).is_file() for file in files)


def test_core_lists_the_agent_as_people_find_it_in_the_marketplace() -> None:
    agent = CONFIG["applications"]["general-purpose-agent"]
    assert agent["displayName"] == "General Purpose Agent"
    for offer in ("file extraction", "RAG", "web search", "Python code interpreter", "image generation"):
        assert offer in agent["description"]
    assert agent["iconUrl"]


def test_people_can_attach_every_kind_of_file_that_the_agent_reads_or_shows_to_a_model() -> None:
    printed = json.loads(render_config(OWN_CONFIG, {"OPENAI_API_KEY": "one", "DIAL_API_KEY": "two"}))
    for config in (CONFIG, printed):
        declared = config["applications"]["general-purpose-agent"]["inputAttachmentTypes"]
        assert sorted(declared) == sorted({*PICTURES, *BY_TYPE})
        assert sorted(config["models"]["gpt-4o"]["inputAttachmentTypes"]) == sorted(PICTURES)


def test_pictures_come_from_a_model_that_core_limits_and_the_adapter_serves_as_one() -> None:
    painter = Settings().deployments.image
    adapter = SERVICES["adapter-openai"]["environment"]
    assert SERVICES["agent"]["environment"]["AGENT_DEPLOYMENTS__IMAGE"] == f"${{AGENT_DEPLOYMENTS__IMAGE:-{painter}}}"
    assert painter in adapter["DALLE3_DEPLOYMENTS"].split(",")
    assert (adapter["DIAL_USE_FILE_STORAGE"], adapter["DIAL_URL"]) == ("True", "http://core:8080")
    [upstream] = CONFIG["models"][painter]["upstreams"]
    assert upstream["endpoint"].endswith("/images/generations")
    limits = CoreConfig.model_validate(CONFIG).limit(painter, ("default",))
    assert 0 < limits.request_hour <= limits.request_day < UNLIMITED


def test_every_model_of_core_is_limited_for_the_role_of_the_key() -> None:
    assert set(CONFIG["models"]) <= set(CONFIG["roles"]["default"]["limits"])


def test_the_configuration_holds_no_key_but_names_where_it_comes_from() -> None:
    keys = [*CONFIG["keys"], *(up["key"] for model in CONFIG["models"].values() for up in model["upstreams"])]
    assert keys
    assert all(re.fullmatch(r"\$\{env:[A-Z_]+\}", key) for key in keys)
    given = SERVICES["core-config"]["environment"]
    assert {key.removeprefix("${env:").rstrip("}") for key in keys} <= set(given)


def test_what_the_image_takes_for_its_build_can_be_given_to_docker_compose() -> None:
    taken = set(re.findall(r"^ARG (\w+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))
    for name in ("agent", "core-config"):
        assert SERVICES[name]["build"]["args"] == {argument: f"${{{argument}:-}}" for argument in taken}


def test_the_image_runs_as_an_ordinary_user_and_asks_the_agent_for_its_health() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    final = dockerfile[dockerfile.rindex("\nFROM ") :]
    assert "\nUSER agent\n" in final
    assert "http://127.0.0.1:5030/health" in final
    assert all(base == "python:3.11-slim" for base in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE))
    assert 'ARG PIP_INDEX_ARGS=""' in dockerfile
