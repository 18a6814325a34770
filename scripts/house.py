"""Compare the size and shape of the code with the bounds in house.toml; `--write` lowers them to today's figures.

Lines are physical lines. A bound is raised by hand, with a sentence in the commit that says what users get for it. The
tables that begin with `path` belong to tests/integration/test_path_of_a_request.py.
"""

import ast
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BOUNDS = "house.toml"
HEADER = """\
# What the house may measure at most: lines and files of every room, and the shape of the whole. `make check` compares,
# `make house` lowers a bound to today's figure. A bound is raised by hand, with a sentence in the commit that says what
# users get for it.
"""
TREES = ("task", "mcp_servers", "tests", "scripts", "evaluation")
DATA = ("toml", "json", "sql", "js", "css")
MIXED = ("local",)  # folders whose sub-folders are rooms of their own
AT_ROOT = {"app.py": "dial", "agent.py": "dial", "__main__.py": "cli"}  # files beside the rooms to which they belong
COMMAND_READER = ("facts", "matching", "programs", "shell")

Figures = dict[str, dict[str, float]]


def room_of(path: str) -> str:
    """The room to which a file belongs; files at the root of `task` are one room, with three exceptions."""
    tree, *folders, name = path.split("/")
    if tree != "task":
        return tree
    if not folders:
        return f"task/{AT_ROOT[name]}" if name in AT_ROOT else "task"
    if folders[0] == "permissions" and Path(name).stem in COMMAND_READER:
        return "task/permissions.reader"
    return "/".join(["task", *folders[: 2 if folders[0] in MIXED else 1]])


def sizes(files: Mapping[str, str]) -> Figures:
    """Per room: Python files, their lines, and the lines of each kind of data, as far as there are any."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for path, text in files.items():
        kind = path.rpartition(".")[2]
        if kind == "py" and path.startswith(TREES):  # setup.py at the root is packaging
            rooms[room_of(path)].update(files=1, lines=len(text.splitlines()))
        elif kind in DATA and path.startswith(TREES):
            rooms[room_of(path)][kind] += len(text.splitlines())
    product = [counts for room, counts in rooms.items() if room.split("/")[0] == "task"]
    rooms["task as a whole"].update({name: sum(counts[name] for counts in product) for name in ("files", "lines")})
    return {room: dict(sorted(counts.items())) for room, counts in sorted(rooms.items())}


def shape(files: Mapping[str, str]) -> dict[str, float]:
    """What tires a reader, counted over `task`; the mean length of a line counts what is not blank."""
    modules = {path: text for path, text in files.items() if path.startswith("task/") and path.endswith(".py")}
    trees = {path: ast.parse(text) for path, text in modules.items()}
    filled = [line for text in modules.values() for line in text.splitlines() if line.strip()]
    classes = Counter(
        name
        for tree in trees.values()
        for name in {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    )
    importers = Counter(imported for path, tree in trees.items() for imported in _imported(path, tree, modules))
    return {
        "private functions called from one place": sum(map(_called_once, trees.values())),
        "class names defined in two files": sum(count > 1 for count in classes.values()),
        "files with one importer": sum(count == 1 for count in importers.values()),
        "fmt: skip": sum(text.count("# fmt: skip") for text in modules.values()),
        "mean length of a line": round(sum(map(len, filled)) / max(len(filled), 1), 1),
    }


def _called_once(tree: ast.AST) -> int:
    """Private functions and methods of a module that it names exactly once beside their definition."""
    uses: Counter[str] = Counter()
    private: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            uses[node.id] += 1
        elif isinstance(node, ast.Attribute):
            uses[node.attr] += 1
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_private(node.name):
            private.add(node.name)
    return sum(uses[name] == 1 for name in private)


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _imported(path: str, tree: ast.AST, modules: Mapping[str, str]) -> set[str]:
    """The files of `task` that a file imports, wherever in it; a package's own `__init__.py` is not counted."""
    package = path.split("/")[:-1]
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(f"{alias.name.replace('.', '/')}.py" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = "/".join([*base, *(node.module or "").split(".")]).strip("/")
            found.add(f"{source}.py")
            found.update(f"{source}/{alias.name}.py" for alias in node.names)
    return {file for file in found if file in modules and file != path}


def measured(files: Mapping[str, str]) -> Figures:
    """All figures, by the table of house.toml in which they stand."""
    return {**sizes(files), "shape": shape(files)}


def problems(figures: Figures, bounds: Figures) -> Iterable[str]:
    """One sentence for each figure that is above its bound, below it, or without one."""
    for table, counts in figures.items():
        for name, figure in counts.items():
            bound = bounds.get(table, {}).get(name)
            if bound is None:
                yield f"{table}: {figure} {name}, and house.toml gives no bound; a new room needs a place in it"
            elif figure > bound:
                yield f"{table}: {figure} {name}, at most {bound} are allowed; shrink it, or say in the commit why"
            elif figure < bound:
                yield f"{table}: {figure} {name}, the bound is {bound}; run `make house` to keep what was gained"


def lowered(figures: Figures, bounds: Figures) -> Figures:
    """Today's figures, or the bounds where those are lower; what no longer exists has no bound."""
    return {
        table: {name: min(figure, bounds.get(table, {}).get(name, figure)) for name, figure in counts.items()}
        for table, counts in figures.items()
    }


def written(tables: Figures) -> str:
    """The tables as TOML; whole numbers without a fraction."""
    blocks = [
        f'["{table}"]\n' + "".join(f'"{name}" = {figure:g}\n' for name, figure in counts.items())
        for table, counts in tables.items()
    ]
    return "\n".join([HEADER, *blocks])


def tracked(root: Path) -> dict[str, str]:
    """The text of every file that git tracks, or would, and that counts; the page's vendored libraries are not ours."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return {
        path: (root / path).read_text(encoding="utf-8")
        for path in listed
        if path.endswith(("py", *DATA)) and "/vendor/" not in path and (root / path).is_file()
    }


def main(arguments: list[str]) -> int:
    """Compare, or write; the exit code."""
    file = ROOT / BOUNDS
    bounds: Figures = tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    figures = measured(tracked(ROOT))
    if "--write" in arguments:
        paths = {table: counts for table, counts in bounds.items() if table.startswith("path")}
        file.write_text(written({**lowered(figures, bounds), **paths}), encoding="utf-8")
        return 0
    found = list(problems(figures, bounds))
    for problem in found:
        print(f"house: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
