"""These tests need a real Ollama, named by OLLAMA_HOST; where none answers there is nothing here to collect."""

import json
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from tests.support.isolation import OUTSIDE

PORT = 11434  # as Ollama has it, where only a host is named


def _address() -> str | None:
    host = OUTSIDE.get("OLLAMA_HOST", "").rstrip("/")
    if not host or "://" in host:
        return host or None
    return f"http://{host}" if urlsplit(f"http://{host}").port else f"http://{host}:{PORT}"


def _first_model(address: str) -> str | None:
    """The first model that can use tools."""
    try:
        for model in _answer(f"{address}/api/tags")["models"]:
            if "tools" in _answer(f"{address}/api/show", {"model": model["name"]})["capabilities"]:
                return model["name"]
    except (OSError, ValueError, KeyError):
        return None
    return None


def _answer(url: str, body: object = None) -> dict[str, Any]:
    data = json.dumps(body).encode() if body is not None else None
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=5) as response:
        return json.load(response)


ADDRESS = _address()
MODEL = _first_model(ADDRESS) if ADDRESS else None
collect_ignore_glob = [] if MODEL else ["test_*.py"]


def pytest_report_header() -> str:
    return f"Ollama: {MODEL} at {ADDRESS}" if MODEL else "Ollama: none with a model that uses tools at OLLAMA_HOST"
