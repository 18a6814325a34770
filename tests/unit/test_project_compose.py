"""docker-compose.yml: its services, their rights, and what can be set without editing it."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from task.settings import PREFIX, Settings
from task.settings.sources import settings_of
from tests.support.compose import (
    FILLED,
    REQUIRED,
    ROOT,
    MissingVariable,
    as_written,
    composed,
    container_environment,
    image_builds,
)

SOURCE, BUILDS = as_written(), image_builds()
NAME = "dial-general-purpose-agent"
COMPOSE = composed(FILLED)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONE_SHOT = {"core-config", "ollama-pull"}
UNWATCHED = {"collector", "dapr"}  # images with one program and nothing that could ask for its health
WRITABLE = {"chat", "chat-1", "core", "ollama", "ollama-pull"}  # images that write beside their data
# The container's port mapping and its health check need these.
FIXED = {"AGENT_HOST", "AGENT_PORT"}
SECRET_NAMES = re.compile(r"KEY$|SECRET$|\.key$|\.secret$|PASSWORD|TOKEN")


def profiles(name: str) -> set[str]:
    return set(SERVICES[name].get("profiles", []))


@pytest.mark.parametrize("agent", ["agent", "agent-2"])
def test_every_setting_can_be_set_in_the_env_file(agent: str) -> None:
    chosen = dict.fromkeys({setting.variable for setting in settings_of(Settings, PREFIX)} - FIXED, "chosen")
    given = container_environment(agent, {**FILLED, **chosen})
    assert {name: given[name] for name in chosen} == chosen


def test_the_settings_of_the_interpreter_reach_its_server() -> None:
    usual = Settings().interpreter
    # `port` and `python` are the image's; `unsafe` is for machines without a sandbox.
    for name in sorted(type(usual).model_fields.keys() - {"port", "python", "unsafe"}):
        option = f"--{name.replace('_', '-')}"
        given = {**FILLED, f"{PREFIX}INTERPRETER__{name.upper()}": "7"}
        assert f"{option} {getattr(usual, name):g} " in f"{SERVICES['python-interpreter']['command']} "
        assert f"{option} 7 " in f"{composed(given)['services']['python-interpreter']['command']} "


def test_the_agent_gets_no_secret_that_is_for_another_service() -> None:
    others = {
        found
        for name, service in SOURCE["services"].items()
        if name not in {"agent", "agent-2"}
        for found in re.findall(r"\$\{(\w+)", json.dumps(service.get("environment", {})))
        if SECRET_NAMES.search(found)
    }
    others.add("PIP_INDEX_ARGS")  # an address for the build, maybe with a password
    known = {setting.variable for setting in settings_of(Settings, PREFIX)}
    given = container_environment("agent", {**FILLED, **dict.fromkeys(others, "secret")})
    assert {"DIAL_ENCRYPTION_KEY", "NEXTAUTH_SECRET", "POSTGRES_PASSWORD"} <= others - known
    assert {name: given[name] for name in others - known} == dict.fromkeys(others - known, "")


@pytest.mark.fault("compose: a variable of docker compose or of Core's configuration that is not set")
@pytest.mark.parametrize("name", REQUIRED)
def test_a_missing_variable_stops_the_start_with_its_name_and_the_fix(name: str) -> None:
    with pytest.raises(MissingVariable, match=f"{name}: set {name} in .env"):
        composed({**FILLED, name: ""})


@pytest.mark.fault("compose: a published port that is taken")
@pytest.mark.parametrize(
    ("variable", "service"),
    [
        ("HOST_PORT_AGENT", "agent"),
        ("HOST_PORT_BALANCER", "balancer"),
        ("HOST_PORT_CHAT", "chat"),
        ("HOST_PORT_CHAT_1", "chat-1"),
        ("HOST_PORT_CORE", "core"),
        ("HOST_PORT_GRAFANA", "grafana"),
        ("HOST_PORT_THEMES", "themes"),
    ],
)
def test_where_a_port_is_taken_another_one_is_chosen_in_the_env_file(variable: str, service: str) -> None:
    [usual], [other] = SERVICES[service]["ports"], composed({**FILLED, variable: "6123"})["services"][service]["ports"]
    assert other == f"127.0.0.1:6123:{usual.rpartition(':')[2]}"
    assert len({port for entry in SERVICES.values() for port in entry.get("ports", [])}) == 7


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_has_no_capability_that_it_does_not_need_and_a_read_only_root_where_its_image_allows(
    name: str,
) -> None:
    service = SERVICES[name]
    assert (service["cap_drop"], service["security_opt"]) == (["ALL"], ["no-new-privileges:true"])
    assert ("cap_add" in service) == name.startswith("python-interpreter")
    assert service.get("read_only", False) == (name not in WRITABLE)


def test_code_runs_without_a_way_out_and_with_no_more_rights_than_it_takes_to_confine_it() -> None:
    service = SERVICES["python-interpreter"]
    assert COMPOSE["networks"]["tools"] == {"internal": True}
    assert service["networks"] == ["tools"]
    assert "ports" not in service
    assert set(service["cap_add"]) == {"CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETUID"}
    assert service["pids_limit"] <= 4096
    assert set(service["environment"]) == {"AGENT_MCP_TOKEN", "DIAL_ENDPOINT"}


@pytest.mark.fault("compose: a second agent without the secret or the store that both must share")
@pytest.mark.parametrize("missing", ["AGENT_STATE_SECRET", "AGENT_STORE__URL"])
def test_a_second_agent_does_not_start_without_what_both_must_share(missing: str, tmp_path: Path) -> None:
    (tmp_path / "dial-agent").write_text("#!/bin/sh\necho served $1\n", encoding="utf-8")
    (tmp_path / "dial-agent").chmod(0o755)
    shared = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "AGENT_STATE_SECRET": "s", "AGENT_STORE__URL": "u"}
    command = [part.replace("$$", "$") for part in SERVICES["agent-2"]["command"]]
    assert started(command, shared) == (0, "served serve\n")
    code, line = started(command, {**shared, missing: ""})
    assert (code, missing in line, "Set both in .env" in line, line.count("\n")) == (2, True, True, 1)


def started(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=25, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_image_is_pinned_to_a_version(name: str) -> None:
    _, _, tag = SERVICES[name]["image"].rpartition(":")
    assert re.match(r"v?\d+\.\d+", tag)


def test_chat_1_comes_beside_the_chat_that_is_the_default_and_returns_users_to_its_own_port() -> None:
    assert (profiles("chat"), profiles("chat-1")) == (set(), {"chat-1"})
    chat = composed({**FILLED, "HOST_PORT_CHAT_1": "6123", "CHAT_1_REALM": "https://id.example/realms/dial"})[
        "services"
    ]["chat-1"]["environment"]
    assert chat["AUTH_KEYCLOAK_HOST"] == "https://id.example/realms/dial"
    own = ("CORS_ORIGIN", "AUTH_CALLBACK_BASE_URL", "AUTH_POST_LOGOUT_REDIRECT_URI")
    assert {chat[name] for name in own} == {"http://localhost:6123"}
    assert (chat["DIAL_CORE_URL"], "DIAL_API_KEY" in chat) == ("http://core:8080", False)


def test_core_gets_the_configuration_of_its_own_version() -> None:
    image = SERVICES["core"]["image"].rpartition(":")[2]
    assert f"--core-version {image.rpartition('.')[0]}" in SERVICES["core-config"]["command"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_service_is_limited_and_every_lasting_one_restarts_and_is_watched(name: str) -> None:
    service = SERVICES[name]
    assert {"mem_limit", "cpus"} <= set(service)
    if name in ONE_SHOT:
        assert service["restart"] == "no"
        return
    assert service["restart"] == "unless-stopped"
    assert "healthcheck" in service or name in BUILDS or name in UNWATCHED


def test_no_secret_stands_in_the_file() -> None:
    for service in SOURCE["services"].values():
        for name, value in service.get("environment", {}).items():
            if SECRET_NAMES.search(name):
                assert re.fullmatch(r"|\$\{\w+:(\?set \w+ in \.env|-)\}", value), name


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_whatever_a_service_refers_to_is_in_the_file(name: str) -> None:
    service = SERVICES[name]
    addresses = re.findall(
        r"\w+://(?:[^/@\s\"']*@)?([\w.-]+)", json.dumps([service.get("environment"), service.get("command")])
    )
    assert set(addresses) - {"localhost", "api.openai.com"} <= set(SERVICES)
    for other, wait in service.get("depends_on", {}).items():
        assert wait["condition"] == ("service_completed_successfully" if other in ONE_SHOT else "service_healthy")
        assert wait.get("required", True) == (not profiles(other) or profiles(other) <= profiles(name))
    for source in (volume.split(":")[0] for volume in service.get("volumes", [])):
        assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"]
    assert "build" not in service  # a folder that `init` has written could not
    assert (name in BUILDS) == (NAME in service["image"])
    if name in BUILDS:
        assert SOURCE["services"][name]["image"].startswith(f"${{IMAGE_REGISTRY:-}}{NAME}")
        dockerfile = (ROOT / BUILDS[name].get("dockerfile", "Dockerfile")).read_text(encoding="utf-8")
        arguments = {argument: f"${{{argument}:-}}" for argument in re.findall(r"^ARG (\w+)", dockerfile, re.MULTILINE)}
        assert BUILDS[name].get("args", {}) == arguments
        assert "HEALTHCHECK" in dockerfile


def test_the_image_runs_as_an_ordinary_user_and_asks_the_agent_for_its_health() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    final = dockerfile[dockerfile.rindex("\nFROM ") :]
    assert "\nUSER agent\n" in final
    assert "http://127.0.0.1:5030/health" in final
    assert all(base == "python:3.11-slim" for base in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE))
    assert 'ARG PIP_INDEX_ARGS=""' in dockerfile
