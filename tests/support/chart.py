"""The chart in `kubernetes/`: its values, and its templates filled in with them.

The templates use nothing of Helm's language but values, the release and `toJson`; anything else is refused here.
"""

import json
import re
from functools import cache
from typing import Any

import yaml

from tests.support.compose import ROOT

FOLDER = ROOT / "kubernetes"
RELEASE = {"Name": "assistant", "Namespace": "dial"}
_ACTION = re.compile(r"\{\{ (?P<json>toJson )?\.(?P<path>[\w.]+) \}\}")


@cache
def chart() -> Any:
    return yaml.safe_load((FOLDER / "Chart.yaml").read_text(encoding="utf-8"))


@cache
def values() -> Any:
    return yaml.safe_load((FOLDER / "values.yaml").read_text(encoding="utf-8"))


@cache
def objects() -> list[Any]:
    """What the templates render, in the order of their files."""
    rendered = (_filled(file.read_text(encoding="utf-8")) for file in sorted((FOLDER / "templates").iterdir()))
    return [found for text in rendered for found in yaml.safe_load_all(text)]


def named(kind: str, name: str) -> Any:
    """The one object of this kind with this name."""
    [found] = [each for each in objects() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return found


def _filled(template: str) -> str:
    text = _ACTION.sub(_value, template)
    assert "{{" not in text, re.findall(r"\{\{.*?\}\}", text)
    return text


def _value(action: re.Match[str]) -> str:
    found: Any = {"Values": values(), "Release": RELEASE}
    for name in action["path"].split("."):
        found = found[name]
    assert action["json"] or isinstance(found, str | int), action[0]
    return json.dumps(found) if action["json"] else str(found)
