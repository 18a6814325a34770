"""Compare the coverage of each room with its floor in coverage.toml; `--write` raises the floors, never lowers one.

It reads the report that `make test COVERAGE=1` leaves. A floor is a whole percentage of lines and branches, at least
half a point below the figure: what the tests reach differs a little from run to run.
"""

import json
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scripts.house import room_of

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "build" / "coverage.json"
FLOORS = ROOT / "coverage.toml"
SLACK = 0.5


def reached(report: Mapping[str, Any]) -> dict[str, float]:
    """Per room the percentage of lines and branches, from a report of `coverage json`."""
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for path, file in report["files"].items():
        found = file["summary"]
        rooms[room_of(path)].update(
            done=found["covered_lines"] + found["covered_branches"], all=found["num_statements"] + found["num_branches"]
        )
    return {room: 100 * counts["done"] / counts["all"] for room, counts in sorted(rooms.items()) if counts["all"]}


def problems(figures: Mapping[str, float], floors: Mapping[str, int]) -> Iterator[str]:
    """One sentence for each room that is below its floor or has none."""
    for room, figure in figures.items():
        if room not in floors:
            yield f"{room}: {figure:.1f} %, and coverage.toml gives no floor; run `make floors`"
        elif figure < floors[room]:
            yield f"{room}: {figure:.1f} %, the floor is {floors[room]} %; test what is new"


def raised(figures: Mapping[str, float], floors: Mapping[str, int]) -> dict[str, int]:
    """The floors, or today's figures where those are higher; a room that is gone has none."""
    return {room: max(int(figure - SLACK), floors.get(room, 0)) for room, figure in figures.items()}


def main(arguments: list[str]) -> int:
    """Compare, or write; the exit code."""
    if not REPORT.is_file():
        sys.exit("coverage: run `make test COVERAGE=1` first.")
    text = FLOORS.read_text(encoding="utf-8")
    floors = tomllib.loads(text)
    figures = reached(json.loads(REPORT.read_text(encoding="utf-8")))
    if "--write" in arguments:
        lines = (f'"{room}" = {floor}\n' for room, floor in raised(figures, floors).items())
        FLOORS.write_text(text[: text.index('"')] + "".join(lines), encoding="utf-8")
        return 0
    found = list(problems(figures, floors))
    for problem in found:
        print(f"coverage: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
