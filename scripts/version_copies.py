"""Copy the version of pyproject.toml into what cannot read it: the chart and docker compose; `--check` compares."""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What stands before the version, by file.
COPIES = {
    "docker-compose.yml": r"image: dial-general-purpose-agent[a-z-]*:",
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


def main(arguments: list[str]) -> int:
    stale = {path: text for path, text in copied().items() if path.read_text(encoding="utf-8") != text}
    for path, text in stale.items():
        if "--check" in arguments:
            print(
                f"{path.relative_to(ROOT)} has another version than pyproject.toml; run `make docs`.", file=sys.stderr
            )
        else:
            path.write_text(text, encoding="utf-8")
    return int("--check" in arguments and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
