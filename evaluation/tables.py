"""How many cells of damaged CSV files are read as they were meant."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from evaluation.corpus import Half
from evaluation.damaged_tables import DamagedTable, damaged_tables
from task.documents.extract import extract
from task.documents.model import Extraction

_BETWEEN = re.compile(r"(?<!\\)\|")


@dataclass(frozen=True, slots=True)
class Cells:
    """Of one file: how many cells with text it has, how many were found, and how many of these are right."""

    kind: str
    wanted: int
    found: int
    right: int

    @property
    def f1(self) -> float:
        return 2 * self.right / (self.wanted + self.found or 1)


def tables_report(half: Half) -> str:
    """The table of one half by kind of damage."""
    files = cells_of(table for table in damaged_tables() if table.half == half)
    groups = {
        kind: [file for file in files if file.kind == kind] for kind in dict.fromkeys(file.kind for file in files)
    }
    means = [fmean(file.f1 for file in group) for group in groups.values()]
    rows = [
        ["all files", str(len(files)), _share(files), f"{fmean(file.f1 for file in files):.3f}"],
        ["mean over kinds", str(len(groups)), "", f"{fmean(means):.3f}"],
        *(
            [kind, str(len(group)), _share(group), f"{mean:.3f}"]
            for (kind, group), mean in zip(groups.items(), means, strict=True)
        ),
    ]
    head = ["Kind", "n", "cells right", "F1"]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def cells_of(tables: Iterable[DamagedTable]) -> list[Cells]:
    return [_cells(table, extract("table.csv", table.content)) for table in tables]


def _share(files: Sequence[Cells]) -> str:
    return f"{sum(file.right for file in files) / max(sum(file.wanted for file in files), 1):.2%}"


def _cells(table: DamagedTable, extraction: Extraction) -> Cells:
    wanted, found = _counted(table.rows), _counted(_rows(extraction))
    return Cells(table.kind, wanted.total(), found.total(), (wanted & found).total())


def _counted(rows: Iterable[Sequence[str]]) -> Counter[tuple[int, str]]:
    return Counter((place, cell.strip()) for row in rows for place, cell in enumerate(row) if cell.strip())


def _rows(extraction: Extraction) -> Iterable[list[str]]:
    for block in extraction.blocks:
        lines = [*block.heading.splitlines()[:1], *block.text.splitlines()]
        for line in lines:
            yield [_plain(cell) for cell in _BETWEEN.split(line[1:-1])] if block.heading else [line]


def _plain(cell: str) -> str:
    return cell.strip().replace("<br>", "\n").replace("\\|", "|")
