"""docker-compose.yml as Docker Compose reads it: variables filled in from .env, and what a container then gets."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"
_VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?:(?P<kind>:-|:\?)(?P<text>[^}]*))?\}")
REQUIRED = sorted(set(re.findall(r"\$\{(\w+):\?", FILE.read_text(encoding="utf-8"))))
FILLED = dict.fromkeys(REQUIRED, "filled-in-by-the-tests")


@cache
def as_written() -> dict[str, Any]:
    """The file with its variables."""
    return cast("dict[str, Any]", yaml.safe_load(FILE.read_text(encoding="utf-8")))


def image_builds() -> dict[str, dict[str, Any]]:
    """How the images of our services are built, which only a clone has the files for."""
    services = yaml.safe_load((ROOT / "docker-compose.override.yml").read_text(encoding="utf-8"))["services"]
    return {name: service["build"] for name, service in services.items()}


class MissingVariable(Exception):
    """What Docker Compose reports when a required variable is not set."""


def composed(variables: Mapping[str, str]) -> dict[str, Any]:
    """The whole file with the variables of .env.

    Raises:
        MissingVariable: one that has no default.
    """

    def value(found: re.Match[str]) -> str:
        given = variables.get(found["name"]) or ""
        if not given and found["kind"] == ":?":
            raise MissingVariable(f"{found['name']}: {found['text']}")
        return given or (found["text"] or "" if found["kind"] == ":-" else "")

    def filled(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: filled(inner) for key, inner in node.items()}
        if isinstance(node, list):
            return [filled(inner) for inner in node]
        return _VARIABLE.sub(value, node) if isinstance(node, str) else node

    return filled(as_written())


def container_environment(service: str, variables: Mapping[str, str]) -> dict[str, str]:
    """The environment of a service's container: the files it names, under its own variables."""
    described = composed(variables)["services"][service]
    from_file = variables if any(entry["path"] == ".env" for entry in described.get("env_file", [])) else {}
    return {**from_file, **described.get("environment", {})}
