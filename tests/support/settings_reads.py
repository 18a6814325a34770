"""Which settings the product's code reads, found in its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from task.settings import Settings
from task.settings.sources import SettingPath, settings_of

TASK = Path(__file__).parents[2] / "task"
# It shows all settings in the documented shape, whether they have an effect or not.
VIEW = TASK / "console" / "configuration.py"
ROOTS = frozenset({"settings", "_settings"})  # what variables and attributes that hold the whole tree are called


def read_keys() -> set[str]:
    """The dotted keys of all settings that code outside the settings' own package reads."""
    files = [path for path in TASK.rglob("*.py") if path != VIEW and path.parent.name != "settings"]
    return keys_in(*(path.read_text(encoding="utf-8") for path in files), _properties())


def keys_in(*sources: str) -> set[str]:
    """The dotted keys that these modules read."""
    found = set[str]()
    for source in sources:
        reads = _Reads()
        reads.visit(ast.parse(source))
        found |= reads.keys
    return found


def _properties() -> str:
    # `store_options` is a property of the tree: its `self` are the settings.
    source = (TASK / "settings" / "tree.py").read_text(encoding="utf-8")
    return source.replace("self", "settings")


def _model(path: SettingPath) -> type[BaseModel]:
    model: type[BaseModel] = Settings
    for name in path:
        inner: Any = model.model_fields[name].annotation
        model = inner
    return model


SECTIONS = {_model(item.path[:-1]).__name__: item.path[:-1] for item in settings_of(Settings, "")}


class _Reads(ast.NodeVisitor):
    """Follows `settings.limits`, and the variables that hold such a section, to the settings that are read."""

    def __init__(self) -> None:
        self.keys = set[str]()
        self._sections: dict[str, SettingPath] = {}  # by the name of a variable

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outside = dict(self._sections)
        for parameter in node.args.args:
            if isinstance(parameter.annotation, ast.Name) and parameter.annotation.id in SECTIONS:
                self._sections[parameter.arg] = SECTIONS[parameter.annotation.id]
        self.generic_visit(node)
        self._sections = outside

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target, value in _pairs(node.targets[0], node.value):
            if isinstance(target, ast.Name):
                self._sections.pop(target.id, None)
                if (path := self._path(value)) is not None:
                    self._sections[target.id] = path

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.generic_visit(node)
        base = self._path(node.value)
        if base is None:
            return
        if node.attr == "model_dump":
            self.keys |= {item.key for item in settings_of(Settings, "") if item.path[: len(base)] == base}
        elif node.attr in _model(base).model_fields and not _is_section((*base, node.attr)):
            self.keys.add(".".join((*base, node.attr)))

    def _path(self, node: ast.expr) -> SettingPath | None:
        if isinstance(node, ast.Name):
            return self._sections.get(node.id, () if node.id in ROOTS else None)
        if not isinstance(node, ast.Attribute):
            return None
        base = self._path(node.value)
        if base is None:
            return () if node.attr in ROOTS else None
        path = (*base, node.attr)
        return path if _is_section(path) else None


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=True)
    else:
        yield target, value


def _is_section(path: SettingPath) -> bool:
    field = _model(path[:-1]).model_fields.get(path[-1])
    return field is not None and isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
