"""Fetch the libraries that the web page carries: `python -m scripts.vendor`, for developers, with npm.

`task/api/web/static/vendor/vendor.json` is the list: for each package its version, the integrity hash of the registry,
and which files are taken. The script writes the hash of each file into it.
"""

import base64
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parent.parent / "task/api/web/static/vendor"
LIST = VENDOR / "vendor.json"


def main() -> int:
    listed = json.loads(LIST.read_text())
    for package in listed["packages"]:
        folder, package["files"] = folder_of(package), dict[str, str]()
        shutil.rmtree(folder, ignore_errors=True)
        for name, content in sorted(_taken(package, _archive(package))):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            package["files"][name] = hashlib.sha256(content).hexdigest()
        print(f"{package['name']} {package['version']}: {len(package['files'])} files")
    LIST.write_text(json.dumps(listed, indent=2) + "\n")
    return 0


def folder_of(package: Mapping[str, Any]) -> Path:
    """Where the files of a package are."""
    return VENDOR / package["name"].split("/")[0].lstrip("@")


def _archive(package: Mapping[str, Any]) -> bytes:
    wanted = f"{package['name']}@{package['version']}"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", wanted], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        content = next(Path(folder).glob("*.tgz")).read_bytes()
    if package["integrity"] != "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode():
        sys.exit(f"{wanted}: the archive does not have the integrity hash of the list")
    return content


def _taken(package: Mapping[str, Any], archive: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            name = member.name.removeprefix("package/")
            if not _matches(name, package["take"]) or _matches(name, package.get("leave", ())):
                continue
            content = files.extractfile(member)
            if content is not None:
                yield name.removeprefix("dist/").removeprefix("build/"), content.read()


def _matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


if __name__ == "__main__":
    sys.exit(main())
