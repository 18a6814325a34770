"""The workspaces that an operator names: which folders may be one, and who gets their tools."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from task.cli.doctor import results
from task.errors import SettingsError
from task.permissions.policy import CODING_RULES, DEFAULT_RULES, WORKSPACE_TOOLS
from task.product import check
from task.product.parts import command_limits, policy_of, workspace_of
from task.settings import Settings, load_settings
from task.tools.workspace.bounds import refusal
from task.tools.workspace.commands import CommandLimits, Commands
from task.tools.workspace.root import Workspace
from task.tools.workspace.tools import workspace_tools


def loaded(folder: Path, *workspaces: dict[str, Any], **more: str) -> Settings:
    environ = {"AGENT_CODING__WORKSPACES": json.dumps(workspaces), "XDG_DATA_HOME": str(folder / "data"), **more}
    return load_settings(environ=environ, directory=folder)


@pytest.mark.fault("workspace: a caller whom the operator did not name")
@pytest.mark.parametrize(
    ("principal", "gets"),
    [
        ("anna", True), ("http:anna", True),  # an owner of a key of the HTTP API, there and at the DIAL route
        ("bucket-1", True), ("dial:bucket-1", True),  # a user of DIAL Core, through Core and in the HTTP API
        ("local", False), ("bob", False), ("ann", False), ("", False), ("*", False), ("key:anna", False),
    ],
)  # fmt: skip
def test_the_tools_are_for_the_named_owners_only(tmp_path: Path, principal: str, gets: bool) -> None:
    settings = loaded(tmp_path, {"path": str(tmp_path), "owners": ["anna", "bucket-1"]})
    assert workspace_of(settings, principal) == (tmp_path if gets else None)
    assert workspace_of(Settings(), principal) is None


def test_changes_ask_there_unless_the_operator_lets_them_run(tmp_path: Path) -> None:
    entry = {"path": str(tmp_path), "owners": ["anna"]}
    asking, applying = loaded(tmp_path, entry), loaded(tmp_path, entry, AGENT_CODING__APPLY="true")
    bare = loaded(tmp_path, entry, AGENT_CODING__APPLY="true", AGENT_PERMISSIONS__DEFAULT_RULES="false")
    assert not any(rule.workspace for rule in policy_of(asking).rules)
    assert any(rule.workspace for rule in policy_of(applying).rules)
    assert not any(rule.workspace for rule in policy_of(bare).rules)


@pytest.mark.fault("workspace: a workspace without owners, with a relative path or a misspelt key")
@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"path": "/srv/shop"}, "owners"),
        ({"path": "/srv/shop", "owners": []}, "owners"),
        ({"path": "/srv/shop", "owners": [""]}, "owners"),
        ({"path": "shop", "owners": ["anna"]}, "absolute"),
        ({"owners": ["anna"]}, "path"),
        ({"path": "/srv/shop", "owners": ["anna"], "aply": True}, "aply"),
    ],
)
def test_an_entry_that_is_not_complete_stops_the_start(tmp_path: Path, entry: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        loaded(tmp_path, entry)


@pytest.mark.fault("workspace: a folder that is too wide, is missing, or holds the product's own files")
@pytest.mark.parametrize(
    "place", ["/", "~", "{home}/..", "{data}", "{data}/below", "{parent}", "{link}", "{gone}", "{program}"]
)
def test_a_folder_that_is_too_wide_or_the_products_own_stops_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    home, data = tmp_path / "people" / "anna", tmp_path / "state" / "data" / "dial-agent"
    for folder in (home, data / "below"):
        folder.mkdir(parents=True)
    (tmp_path / "link").symlink_to(data)
    monkeypatch.setenv("HOME", str(home))
    state, link, gone = tmp_path / "state", tmp_path / "link", tmp_path / "gone"
    path = place.format(program=sys.prefix, home=home, data=data, parent=state, link=link, gone=gone)
    settings = loaded(tmp_path, {"path": path, "owners": ["anna"]}, XDG_DATA_HOME=str(tmp_path / "state" / "data"))
    with pytest.raises(SettingsError, match="AGENT_CODING__WORKSPACES"):
        check(settings)
    assert refusal(Path("/"), [tmp_path], wide=True) == "", "on request, but never the product's own"
    assert refusal(tmp_path, [tmp_path], wide=True) != ""


@pytest.mark.fault("workspace: a workspace with the settings of the product itself")
@pytest.mark.parametrize("name", [".env", "dial-agent.yaml"])
def test_a_folder_with_the_products_own_settings_stops_the_start(tmp_path: Path, name: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / name).write_text("AGENT_PORT=5031\n" if name == ".env" else "port: 5031\n")
    entry = [{"path": str(work), "owners": ["anna"]}]
    environ = {"AGENT_CODING__WORKSPACES": json.dumps(entry), "XDG_DATA_HOME": str(tmp_path / "data")}
    check(load_settings(environ=environ, directory=tmp_path))
    with pytest.raises(SettingsError, match=r"contains .*, which is the product's own"):
        check(load_settings(environ=environ, directory=work))


async def test_rules_and_lists_about_the_tools_of_a_workspace_are_no_fault(tmp_path: Path) -> None:
    rules = [{"action": "deny", "tool": "shell_run", "command": ["git push"]}, {"action": "ask", "tool": "fs_*"}]
    chosen = {"permissions": {"rules": rules}, "teps": {"allowed_tools": list(WORKSPACE_TOOLS)}}
    [row] = await results(Settings.model_validate({**chosen, "coding": {"apply": True}}), "permission rules")
    assert (row.state, row.found) == ("ok", f"2 of your own, {len(DEFAULT_RULES) + len(CODING_RULES)} of the product's")


async def test_the_operators_limits_hold_for_a_command(tmp_path: Path) -> None:
    assert command_limits(Settings()) == CommandLimits()
    chosen = {"AGENT_CODING__COMMAND_SECONDS": "0.5", "AGENT_CODING__COMMAND_MEMORY_MIB": "512"}
    limits = command_limits(loaded(tmp_path, **chosen))
    assert (limits.seconds, limits.memory_bytes) == (0.5, 512 * 2**20)
    with Workspace(tmp_path) as workspace:
        async with Commands(workspace, limits, gated=True) as commands:
            assert sorted(tool.name for tool in workspace_tools(workspace, commands)) == sorted(WORKSPACE_TOOLS)
            assert (await commands.run("sleep 300")).code == 124
