"""Build what a release consists of into dist/, check it in an empty environment, and print what is left to do.

`make release` calls it with the folder of the programs that build, after `make sbom`.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from scripts.version_copies import ROOT, version

NAME = "dial-general-purpose-agent"
DIST = ROOT / "dist"
SBOM = ROOT / "build" / "sbom"
IMAGES = {
    NAME: "Dockerfile",
    f"{NAME}-search": "mcp_servers/duckduckgo/Dockerfile",
    f"{NAME}-python": "mcp_servers/python_interpreter/Dockerfile",
}
LABELS = "org.opencontainers.image"
NEXT = """
{files}

These files are checked. What is left, in this order:

  git tag --annotate v{version} --message v{version} && git push origin v{version}
  {programs}/uv publish dist/*.whl dist/*.tar.gz
{images}
  helm package kubernetes --dependency-update --destination dist && helm push dist/{name}-{version}.tgz oci://REGISTRY
  A page for the release at the host of the repository: the text of dist/notes.md, and every file of dist/.
"""


class NotReleasable(Exception):
    """The text says what to do before a release."""


def notes(changelog: str, wanted: str) -> str:
    """The section of a version.

    Raises:
        NotReleasable: it is missing or has no date, or lines under *Unreleased* belong to it.
    """
    sections = {
        head.split("]")[0]: (head, body.strip())
        for head, _, body in (part.partition("\n") for part in changelog.split("\n## [")[1:])
    }
    head, body = sections.get(wanted, ("", ""))
    if not re.fullmatch(rf"{re.escape(wanted)}\] - \d{{4}}-\d\d-\d\d", head) or not body:
        raise NotReleasable(f"CHANGELOG.md needs a section `## [{wanted}] - YYYY-MM-DD`.")
    if sections.get("Unreleased", ("", ""))[1]:
        raise NotReleasable(f"Move the lines under *Unreleased* in CHANGELOG.md to [{wanted}].")
    return f"{body}\n"


def labels(wanted: str, revision: str, created: str) -> Iterator[str]:
    """The labels that all images have in common, one a line; none has a blank."""
    values = {"version": wanted, "revision": revision, "created": created, "licenses": "Apache-2.0"}
    yield from (f"{LABELS}.{key}={value}" for key, value in values.items())


def next_steps(wanted: str, programs: Path, files: str) -> str:
    """What a maintainer does with the built files."""
    shared = "$(sed 's/^/--label /' dist/labels)"
    images = "\n".join(
        f"  docker build --file {file} {shared} --label {LABELS}.title={name} --tag REGISTRY/{name}:{wanted} ."
        f" && docker push REGISTRY/{name}:{wanted}"
        for name, file in IMAGES.items()
    )
    return NEXT.format(files=files, version=wanted, programs=programs, images=images, name=NAME)


def build(programs: Path, wanted: str) -> None:
    """Fill dist/: the sdist, the wheel that is built from it, bills of materials, labels, notes and checksums.

    Raises:
        NotReleasable: the working tree or the changelog is not that of a release, or the version has a tag elsewhere.
    """
    if _git("status", "--porcelain"):
        raise NotReleasable("Commit or remove what `git status` lists.")
    revision, seconds, created = _git("log", "-1", "--format=%H %ct %cI").split()
    if _git("tag", "--list", f"v{wanted}") and _git("rev-list", "-1", f"v{wanted}") != revision:
        raise NotReleasable(f"{wanted} is released already; raise `version` in pyproject.toml and run `make docs`.")
    text = notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), wanted)
    shutil.rmtree(DIST, ignore_errors=True)
    command = [programs / "python", "-m", "build", "--no-isolation", "--outdir", DIST, ROOT]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": seconds})
    for file in SBOM.iterdir():
        shutil.copy(file, DIST)
    (DIST / "notes.md").write_text(text, encoding="utf-8")
    (DIST / "labels").write_text("".join(f"{line}\n" for line in labels(wanted, revision, created)), encoding="utf-8")
    sums = [f"{sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")


def check() -> None:
    """Install the wheel in an empty environment, and start and ask the product there, by the test that does so.

    Raises:
        subprocess.CalledProcessError: it does not work.
    """
    pytest = [sys.executable, "-m", "pytest", "-q"]
    command = [*pytest, "-m", "system", "-k", "installed_wheel", "tests/e2e/test_installation.py"]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "DIST": str(DIST)})


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def main(arguments: list[str]) -> int:
    [programs] = map(Path, arguments)
    wanted = version()
    try:
        build(programs, wanted)
        check()
    except (NotReleasable, subprocess.CalledProcessError) as error:
        print(f"make release: {error}", file=sys.stderr)
        return 1
    sizes = (f"  {file.stat().st_size / 1e3:8,.1f} kB  dist/{file.name}" for file in sorted(DIST.iterdir()))
    print(next_steps(wanted, programs, "\n".join(sizes)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
