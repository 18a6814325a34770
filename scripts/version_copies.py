"""Copy the version of pyproject.toml into what cannot read it: the chart and docker compose; `--check` compares."""

import re
import sys
import tomllib
from pathlib import Path

from scripts.pages import publish

ROOT = Path(__file__).resolve().parent.parent
# What stands before the version, by file.
COPIES = {
    "docker-compose.yml": r"image: \S*dial-general-purpose-agent[a-z-]*:",
    "kubernetes/Chart.yaml": r"^(?:version|appVersion): ",
    "kubernetes/values.yaml": r"repository: dial-general-purpose-agent[a-z-]*\n +tag: ",
}


def version(root: Path = ROOT) -> str:
    """The version of the project, from its one place."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def copied(root: Path = ROOT) -> dict[Path, str]:
    """The text that each file with a copy should have."""
    return {
        root / name: re.sub(
            rf"({before})\S+", rf"\g<1>{version(root)}", (root / name).read_text(encoding="utf-8"), flags=re.MULTILINE
        )
        for name, before in COPIES.items()
    }


if __name__ == "__main__":
    sys.exit(max(publish(str(path), text, "pyproject.toml", sys.argv[1:], ROOT) for path, text in copied().items()))
