"""Which settings the product's code reads, found in its syntax trees."""

from __future__ import annotations

import ast
from pathlib import Path

from task.settings import Settings
from task.settings.sources import settings_of

TASK = Path(__file__).parents[2] / "task"
# It shows all settings in the documented shape, whether they have an effect or not.
VIEW = TASK / "console" / "configuration.py"
PASSED_ON = {("interpreter",), ("store",), ("context",), ("http",)}  # as a whole


def read_keys() -> set[str]:
    """The dotted keys of which every part is an attribute that code outside the settings' own package reads."""
    files = [path for path in TASK.rglob("*.py") if path != VIEW and path.parent.name != "settings"]
    files.append(TASK / "settings" / "tree.py")  # its properties read settings
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    read = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    known = settings_of(Settings, "")
    return {item.key for item in known if read.issuperset(item.path) or item.path[:-1] in PASSED_ON}
