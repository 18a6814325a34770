"""Write docs/faults.md, the list of bad inputs, from the tests' markers `fault`; `--check` only compares.

A bad input that the page lists and that has lost its test is an error in both cases, so that giving it up takes an edit
of the page. The tests are parsed, not imported.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from scripts.pages import publish

ROOT = Path(__file__).resolve().parent.parent
PAGE = "faults.md"
OPENING = """\
# Bad input

<!-- Written by `make docs` from the markers `fault` of the tests. -->

The product must survive every input of this list. A bad input is named by the marker
`@pytest.mark.fault("AREA: INPUT")` of the tests that prove it; search the tests for its sentence. `make check` fails
when one has no test that runs, or when this page does not match the markers. To give one up, delete its markers and
its line.
"""
LISTED = re.compile(r"^- (.+?)(?: \(\d+ tests\))?$")
SWITCHED_OFF = re.compile(r"\bpytest\.(?:mark\.)?(skip|skipif|xfail|importorskip)\b")


def tests_of(root: Path) -> Iterator[tuple[str, str | None, list[str]]]:
    """Each test function below `root`: its id, the reason why it may not run, if any, and its bad inputs."""
    for file in sorted((root / "tests").rglob("test_*.py")):
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source)
        assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
        whole = [node for node in assigned if ast.unparse(node).startswith("pytestmark")]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = "\n".join(map(ast.unparse, [*whole, node]))
                reason = found[0] if (found := SWITCHED_OFF.search(text)) else None
                marks = list(_marks(node))
                gone = [case for _, case in marks if case is not None and case not in _words(tree)]
                reason = reason or (f"the case {gone[0]!r}, which is gone" if gone else None)
                yield f"{file.relative_to(root).as_posix()}::{node.name}", reason, [fault for fault, _ in marks]


def _marks(node: ast.AST) -> Iterator[tuple[str, str | None]]:
    """The bad inputs of a test, each with the case of its parameters that it is about, if one is named."""
    for decorator in node.decorator_list if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ():
        for call in ast.walk(decorator):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.fault":
                cases = [ast.literal_eval(option.value) for option in call.keywords if option.arg == "case"]
                yield ast.literal_eval(call.args[0]), next(iter(cases), None)


def _words(tree: ast.AST) -> set[str]:
    """What a file writes down or names, but for the cases of its markers."""
    nodes = list(ast.walk(tree))
    cases = {id(node.value) for node in nodes if isinstance(node, ast.keyword) and node.arg == "case"}
    words = {str(node.value) for node in nodes if isinstance(node, ast.Constant) and id(node) not in cases}
    words |= {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    return words | {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def problems(tests: Iterable[tuple[str, str | None, list[str]]], listed: Iterable[str]) -> Iterator[str]:
    """One sentence per test that may not run, and per bad input of the page without a test."""
    marked: set[str] = set()
    for nodeid, reason, faults in tests:
        marked.update(faults)
        if faults and reason:
            yield f"{nodeid} does not count for {faults}: it uses {reason}"
        for fault in faults:
            if ": " not in fault:
                yield f"{nodeid}: {fault!r} does not name its area, as in 'AREA: INPUT'"
    for fault in listed:
        if fault not in marked:
            yield f"{fault!r} has no test any more; give one its marker, or delete its line from docs/{PAGE}"


def listed(page: str) -> list[str]:
    """The bad inputs of the written page, by the names of their markers."""
    area, found = "", list[str]()
    for line in page.splitlines():
        if line.startswith("## "):
            area = line[3:]
        elif match := LISTED.match(line):
            found.append(f"{area}: {match[1]}")
    return found


def rendered(counts: Counter[str]) -> str:
    """The page: areas by name, their bad inputs by name, each with the number of its tests where that is not one."""
    areas: dict[str, list[str]] = {}
    for fault, count in sorted(counts.items()):
        area, _, sentence = fault.partition(": ")
        areas.setdefault(area, []).append(f"- {sentence} ({count} tests)" if count > 1 else f"- {sentence}")
    return "\n".join([OPENING, *(f"## {area}\n\n" + "\n".join(lines) + "\n" for area, lines in areas.items())])


def main(arguments: list[str], root: Path = ROOT) -> int:
    """Write or compare the page of the project at `root`; the exit code."""
    tests = list(tests_of(root))
    page = root / "docs" / PAGE
    lost = list(problems(tests, listed(page.read_text(encoding="utf-8")) if page.is_file() else []))
    for line in lost:
        print(f"faults: {line}", file=sys.stderr)
    text = rendered(Counter(fault for _, _, faults in tests for fault in faults))
    return 1 if lost else publish(PAGE, text, "the markers of the tests", arguments, page.parent)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
