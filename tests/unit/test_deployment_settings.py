"""Deployments as tools, as an operator configures them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from task.errors import SettingsError
from task.product.parts import default_tools
from task.settings import load_settings

TOOL = {"name": "translate", "description": "Translates.", "deployment": "translator", "prompt": "text"}


def names(environ: dict[str, str], folder: Path) -> list[str]:
    return [tool.name for tool in default_tools(load_settings(environ=environ, directory=folder))]


def test_without_settings_there_is_the_image_tool_and_no_other_deployment(tmp_path: Path) -> None:
    assert "image_generation_tool" in names({}, tmp_path)
    assert "image_generation_tool" not in names({"AGENT_DEPLOYMENTS__IMAGE": "off"}, tmp_path)


def test_a_tool_is_described_in_yaml(tmp_path: Path) -> None:
    (tmp_path / "dial-agent.yaml").write_text(
        "deployments:\n  tools:\n"
        "    - {name: translate, description: Translates., deployment: translator, prompt: text, seconds: 5,\n"
        "       arguments: {language: {type: string}}, attachments: ['text/*']}\n"
    )
    [tool] = [tool for tool in default_tools(load_settings(environ={}, directory=tmp_path)) if tool.name == "translate"]
    assert (tool.description, tool.timeout) == ("Translates.", 5)
    assert list(tool.parameters["properties"]) == ["text", "language", "file_urls"]
    assert tool.parameters["required"] == ["text"]


def test_a_tool_is_described_as_json_in_the_environment(tmp_path: Path) -> None:
    assert "translate" in names({"AGENT_DEPLOYMENTS__TOOLS": json.dumps([TOOL])}, tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "no spaces"}, "pattern"),
        ({"deployment": ""}, "at least 1 character"),
        ({"colour": "red"}, r"tools\[0\].colour: unknown; there are name"),
        ({"arguments": {"text": {"type": "string"}}}, "another meaning"),
        ({"arguments": {"n": {"type": "strin"}}}, "not a JSON Schema"),
        ({"seconds": 0}, "greater than 0"),
    ],
)
def test_a_wrong_description_stops_the_start_with_one_line(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        names({"AGENT_DEPLOYMENTS__TOOLS": json.dumps([TOOL | change])}, tmp_path)
    assert "AGENT_DEPLOYMENTS__TOOLS" in str(caught.value)
    assert "\n" not in str(caught.value)
