"""The settings page matches the settings tree."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, Field, SecretStr

from scripts.settings_table import page


class Limits(BaseModel):
    """How far it goes."""

    steps: int = Field(default=15, description="Steps of one run.")


class Tree(BaseModel):
    port: int = Field(default=5030, description="Port | number.")
    tools: list[str] = Field(default_factory=lambda: ["a", "b"], description="More tools.")
    key: SecretStr | None = Field(default=SecretStr("sesame"), description="A key.")
    limits: Limits = Limits()


class Undescribed(BaseModel):
    port: int = 1


def test_each_setting_is_a_row_with_its_variable_key_default_and_meaning() -> None:
    text = page(Tree)
    assert "| `AGENT_PORT` | `port` | `5030` | Port \\| number. |" in text
    assert "| `AGENT_TOOLS` | `tools` | `a,b` | More tools. |" in text
    assert "## `limits`: How far it goes\n" in text
    assert "| `AGENT_LIMITS__STEPS` | `limits.steps` | `15` | Steps of one run. |" in text


def test_a_secrets_default_is_not_shown() -> None:
    assert "| `AGENT_KEY` | `key` | (secret) | A key. |" in page(Tree)
    assert "sesame" not in page(Tree)


def test_a_setting_without_a_description_stops_the_page() -> None:
    with pytest.raises(SystemExit, match=r"port in .* has no description"):
        page(Undescribed)
