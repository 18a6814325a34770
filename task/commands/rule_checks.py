"""The row of `dial-agent doctor` about the gate's rules."""

from __future__ import annotations

from task.app import default_tools
from task.commands.checks import Check
from task.errors import SettingsError
from task.permission_setup import policy_of
from task.permissions.policy import dead_rules
from task.settings import Settings


def rules_check(settings: Settings) -> Check:
    """Rules that can never decide: another one always comes first, or no tool has such a name.

    Names are not looked at where MCP servers bring tools of their own.
    """
    policy = policy_of(settings)
    own = len(settings.permissions.rules)
    dead = [found for found in dead_rules(policy.rules, _tools(settings)) if found.number <= own]
    if dead:
        told = "; ".join(
            f"rule {found.number} ({found.rule.describe()}) never decides: {found.reason}" for found in dead
        )
        return Check("permission rules", "note", told, "Remove it, or move it up in AGENT_PERMISSIONS__RULES.")
    if any(rule.action == "allow" and rule.trusted for rule in policy.rules):
        told = f"{own} of your own; some allow calls even when text from outside is in the conversation (trusted)"
        return Check("permission rules", "note", told, "Trust only what cannot do harm.")
    return Check("permission rules", "ok", f"{own} of your own, {len(policy.rules) - own} of the product's")


def _tools(settings: Settings) -> list[str] | None:
    if settings.mcp_servers or settings.ddg_mcp_url:
        return None
    try:
        return [tool.name for tool in default_tools(settings)]
    except SettingsError:  # the row of the tools says so
        return None
