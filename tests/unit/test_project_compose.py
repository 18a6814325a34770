"""The container files hold together: pinned images, known ports, no secrets, every configured host a service."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
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
    assert len(agent["inputAttachmentTypes"]) == 6


def test_the_configuration_holds_no_key_but_names_where_it_comes_from() -> None:
    keys = [*CONFIG["keys"], *(up["key"] for model in CONFIG["models"].values() for up in model["upstreams"])]
    assert keys
    assert all(re.fullmatch(r"\$\{env:[A-Z_]+\}", key) for key in keys)
    given = SERVICES["core-config"]["environment"]
    assert {key.removeprefix("${env:").rstrip("}") for key in keys} <= set(given)


def test_the_image_runs_as_an_ordinary_user_and_asks_the_agent_for_its_health() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    final = dockerfile[dockerfile.rindex("\nFROM ") :]
    assert "\nUSER agent\n" in final
    assert "http://127.0.0.1:5030/health" in final
    assert all(base == "python:3.11-slim" for base in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE))
    assert 'ARG PIP_INDEX_ARGS=""' in dockerfile
