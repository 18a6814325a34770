"""Write the tables of docs/names.md: where each name of the specification lives; `--check` only compares."""

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute

from scripts.pages import publish
from task.api.app import ROUTERS

CONTRACT = Path(__file__).resolve().parent.parent / "tests" / "contract"
DOCUMENTS = {
    "000": "The general purpose agent",
    "001": "The HTTP agent",
    "002": "The framework",
    "003": "The planner and executor",
    "004": "Tool calling with Dapr",
}
# The HTTP agent is documented by its routes; `/` is the web page, which is not an operation of the API.
OPERATIONS = (
    ("POST", "/v1/chat/completions"),
    ("POST", "/chat"),
    ("POST", "/session/start"),
    ("POST", "/session/end"),
    ("GET", "/session/{session_id}"),
    ("GET", "/traces"),
    ("GET", "/traces/{trace_id}"),
)
MARK = r"\*"
PACKAGES = {
    "framework_core.config_loader": "task.console.configuration",
    "framework_core.message_manager": "task.conversation.message_manager",
    "framework_core.controller": "task.console.controller",
    "framework_core.ui_manager": "task.console.ui_manager",
    "framework_core.tool_request_handler": "task.console.tool_request_handler",
    "framework_core.error_handler": "task.console.error_handler",
    "framework_core.component_managers.dcm_manager": "task.context.dcm_manager",
    "framework_core.component_managers.lial_manager": "task.console.lial",
    "framework_core.lial_core": "task.console.lial",
    "framework_core.component_managers.teps_manager": "task.console.teps",
    "framework_core.teps": "task.console.teps",
    "framework_core.exceptions": "task.errors",
    "agent.core.config": "task.coding.settings",
    "agent.core.planner": "task.coding.planner",
    "agent.core.executor": "task.coding.executor",
    "agent.tools.fs": "task.tools.workspace.fs",
    "agent.tools.shell": "task.tools.workspace.shell",
    "agent.tools.python_exec": "task.tools.workspace.python_exec",
    "agent.core.orchestrator": "dial-agent run",
    "dapr.clients.grpc._request": "task.llm.conversation_input",
    "ToolHelper.format_tool": "task.tools.base.in_format",
    "RequestHandler.process_params": "task.tools.toolset.ToolSet",
}
OPENING = """\
### Packages

Some documents describe packages of their own. What they call so is here:
"""


def page() -> str:
    """The whole page: a section for each document."""
    names: dict[str, dict[str, Any]] = json.loads((CONTRACT / "documented_names.json").read_text("utf-8"))
    listed = tomllib.loads((CONTRACT / "deviations.toml").read_text("utf-8"))
    deviating = {row["name"] for row in listed["deviation"]}
    lines = [OPENING, "| documented | here |", "|---|---|"]
    lines += [*(f"| `{theirs}` | `{ours}` |" for theirs, ours in PACKAGES.items()), ""]
    for number, title in DOCUMENTS.items():
        rows = _operations() if number == "001" else _rows(names, number, deviating)
        lines += [f"### {title}", "", "| name | where | what is documented of it |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def _rows(names: dict[str, dict[str, Any]], number: str, deviating: set[str]) -> Iterator[str]:
    own = sorted(name for name, entry in names.items() if entry["source"] == number and ":" in name)
    for owner, members in groupby(own, key=lambda name: re.match(r"[^:]*:[^.]*", name)[0]):  # type: ignore[index]
        inner = [name for name in members if "." in name.partition(":")[2]]
        parts = [f"`{name.rpartition('.')[2]}`" + (MARK if name in deviating else "") for name in inner]
        entry, (module, _, top) = names.get(owner, {}), owner.partition(":")
        if not parts and entry.get("kind") == "function":
            parts = [f"`({', '.join(name for name, _ in entry['parameters'])})`"]
        parts = parts or [f"`{name}`" for name, _ in entry.get("fields", ())]
        yield f"| `{top}` | {_place(module)} | {', '.join(parts) or 'the class itself'} |"


def _place(module: str) -> str:
    path = module.replace(".", "/") + ".py"
    known = (CONTRACT.parent.parent / path).is_file()
    return f"[`{module}`](../{path})" if known else f"`{module}`"


def _operations() -> Iterator[str]:
    routes = {(method, route.path): route for router in ROUTERS for route in router.routes
              if isinstance(route, APIRoute) for method in route.methods or ()}  # fmt: skip
    for method, path in OPERATIONS:
        endpoint = routes[method, path].endpoint
        yield f"| `{method} {path}` | {_place(endpoint.__module__)} | `{endpoint.__name__}` |"
    yield f"| `GET /` | {_place('task.api.page')} | the web page |"


if __name__ == "__main__":
    sys.exit(publish("names.md", page(), "the documented names", sys.argv[1:]))
