"""Write bills of materials and the list of licences to build/sbom: `make sbom`; 1 when a licence is not permissive.

CycloneDX describes each environment of the product. Of the product's own, only what it requires counts, not what tests
and checks need. The libraries of the web page come from their list.
"""

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from itertools import chain
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from simpleeval import SimpleEval

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "build" / "sbom"
VENDORED = ROOT / "task/api/web/static/vendor/vendor.json"
ENVIRONMENTS = {"agent": ".venv", "kernels": ".venv-kernel"}
PERMISSIVE = frozenset({
    "0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "BSL-1.0", "CC0-1.0", "CNRI-Python", "ISC", "MIT", "MIT-0",
    "MIT-CMU", "PSF-2.0", "Python-2.0", "Zlib",
})  # fmt: skip
# Names in packages' metadata that are not SPDX's.
SPDX = {
    "License :: OSI Approved :: Apache Software License": "Apache-2.0",
    "License :: OSI Approved :: BSD License": "BSD-3-Clause",
    "License :: OSI Approved :: MIT License": "MIT",
}
# What packages say in a form that CycloneDX does not take over.
STATED = {
    "agent-client-protocol": "Apache-2.0",
    "asttokens": "Apache-2.0",
    "primp": "MIT",
    "protobuf": "BSD-3-Clause",
    "pypdfium2": "BSD-3-Clause AND Apache-2.0",
    "uritemplate": "BSD-3-Clause OR Apache-2.0",
}
_FILES = "copyleft of its own files only, which are used unchanged"
# Licences that are not permissive, by the beginning of the package's name, each with the reason why it is used.
ACCEPTED = {
    "certifi": _FILES,
    "orjson": _FILES,
    "tld": _FILES,
    "tqdm": _FILES,
}

Component = dict[str, Any]


def licence(component: Component) -> str:
    """The component's licence as an SPDX expression, or what it states instead; empty: nothing."""
    items = component.get("licenses", ())
    stated = [str(i.get("expression") or i["license"].get("id") or i["license"].get("name", "")) for i in items]
    known = [SPDX.get(text, text) for text in stated]
    return next(filter(permissive, known), known[0] if known else STATED.get(component["name"], ""))


def permissive(expression: str) -> bool:
    """Whether an SPDX expression leaves the choice of permissive licences only."""
    words = {"AND": "and", "OR": "or"}
    text = re.sub(r" WITH LLVM-exception", "", expression)  # it only permits more
    text = re.sub(r"[\w.+-]+", lambda found: words.get(found[0], str(found[0] in PERMISSIVE)), text)
    try:
        return bool(text) and SimpleEval().eval(text) is True
    except Exception:  # a text that is not an expression
        return False


def required(lines: Iterable[str]) -> frozenset[str]:
    """The names of the packages that these requirements lead to in this environment, extras of no use left out.

    CycloneDX's own graph leads through extras too, and so to the tools of other projects' tests.
    """
    waiting, seen = [Requirement(line) for line in lines], set[tuple[str, frozenset[str]]]()
    while waiting:
        requirement = waiting.pop()
        asked = canonicalize_name(requirement.name), frozenset(requirement.extras)
        if asked in seen or not _installed(requirement.name):
            continue
        seen.add(asked)
        for inner in map(Requirement, metadata.requires(requirement.name) or ()):
            extras = ({"extra": extra} for extra in (*requirement.extras, ""))
            if inner.marker is None or any(map(inner.marker.evaluate, extras)):
                waiting.append(inner)
    return frozenset(name for name, _ in seen)


def _installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:  # another platform's
        return False


def problems(components: Iterable[Component]) -> Iterator[str]:
    """A sentence for each component whose licence is neither permissive nor accepted."""
    for item in components:
        if not permissive(licence(item)) and not item["name"].startswith(tuple(ACCEPTED)):
            yield f"{item['name']} {item['version']}: {licence(item) or 'no licence stated'} is not among the accepted."


def vendored() -> list[Component]:
    """The libraries of the web page."""
    return [
        {
            "type": "library", "bom-ref": f"{package['name']}@{package['version']}", "name": package["name"],
            "version": package["version"], "licenses": [{"license": {"id": package["license"]}}],
            "purl": f"pkg:npm/{package['name'].replace('@', '%40')}@{package['version']}",
        }
        for package in json.loads(VENDORED.read_text(encoding="utf-8"))["packages"]
    ]  # fmt: skip


def _bill(program: str, name: str, environment: str) -> dict[str, Any]:
    command = [program, "environment", "--output-reproducible", str(ROOT / environment / "bin" / "python")]
    bill: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    if name == "agent":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        optional = [project["optional-dependencies"][extra] for extra in ("dapr", "otel")]  # of the image
        names = required(chain(project["dependencies"], *optional))
        own = [item for item in bill["components"] if canonicalize_name(item["name"]) in names]
        bill["components"] = [*own, *vendored()]
    kept = {item["bom-ref"] for item in bill["components"]}
    bill["dependencies"] = [item for item in bill["dependencies"] if item["ref"] in kept]
    return bill


def _list(bills: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield "# Licences\n\nWhat the product consists of, by environment.\n\n"
    for name, bill in bills.items():
        yield f"## {name}\n\n| package | version | licence | |\n|---|---|---|---|\n"
        for item in sorted(bill["components"], key=lambda item: item["name"].lower()):
            note = next((why for start, why in ACCEPTED.items() if item["name"].startswith(start)), "")
            yield f"| {item['name']} | {item['version']} | {licence(item)} | {note} |\n"
        yield "\n"


def main(arguments: list[str]) -> int:
    [program] = arguments
    FOLDER.mkdir(parents=True, exist_ok=True)
    bills = {name: _bill(program, name, environment) for name, environment in ENVIRONMENTS.items()}
    for name, bill in bills.items():
        (FOLDER / f"{name}.cdx.json").write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    (FOLDER / "licences.md").write_text("".join(_list(bills)), encoding="utf-8")
    found = [line for bill in bills.values() for line in problems(bill["components"])]
    print(*found, sep="\n", file=sys.stderr, end="\n" if found else "")
    print(f"{sum(len(bill['components']) for bill in bills.values())} components in {FOLDER.relative_to(ROOT)}.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
