"""The program that loads a table gives what our reader read: the same rows, and numbers and dates as such."""

import csv
import datetime
import io
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.local_answers import content_of
from task.documents.extract import extract
from task.documents.model import page_of, pages_of
from task.local.model.tables import Table, table_of


def read(name: str, content: bytes) -> Table | None:
    return table_of(name, page_of(pages_of(extract(name, content, "")), 1))


def loaded(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes) -> list[list[Any]]:
    """The rows of `df` after the frame's program has run in the file's folder."""
    table = read(name, content)
    assert table is not None
    folder.joinpath(name).write_bytes(content)
    monkeypatch.chdir(folder)
    space: dict[str, Any] = {}
    exec(table.loading, space)
    df = space["df"]
    assert list(df.columns) == [column.name for column in table.columns]
    return df.astype(object).where(df.notna(), None).to_numpy().tolist()


def sheet_at(place: str, *rows: list[Any]) -> bytes:
    """A workbook whose one sheet has the rows from this cell on."""
    from openpyxl import Workbook

    book, out = Workbook(), io.BytesIO()
    start = book.worksheets[0][place]
    for down, row in enumerate(rows):
        for right, value in enumerate(row):
            start.offset(down, right).value = value
    book.save(out)
    return out.getvalue()


DAY = datetime.datetime(2024, 2, 14)
FILES = {
    "commas.csv": (b"A,B\nx,1.5\ny,2\n", [["x", 1.5], ["y", 2.0]]),
    "thousands.csv": (b'A,B\nx,"1,500"\ny,"2,300,000"\n', [["x", 1500], ["y", 2_300_000]]),
    "semicolons.csv": (b"A;B\nx;1.200,50\ny;3,5\n", [["x", 1200.5], ["y", 3.5]]),
    "tabs.tsv": (b"A\tB\nx\t1\ny\t2\n", [["x", 1], ["y", 2]]),
    "pipes.csv": (b"A|B\nx|1\ny|2\n", [["x", 1], ["y", 2]]),
    "titled.csv": ("Report über Äpfel\n\nA;B\nx;1\ny;2\n".encode("cp1252"), [["x", 1], ["y", 2]]),
    "ragged.csv": (b"A,B\nx,1\ny,2,3\nz\n", [["x", 1.0, None], ["y", 2.0, 3.0], ["z", None, None]]),
    "dates.csv": (b"A,B\nx,14.02.2024\n", [["x", DAY]]),
    "both-dates.csv": (b"A,B\n04.02.2024,2024-02-04\n", [[datetime.datetime(2024, 2, 4)] * 2]),
    "signs.csv": (b'A,B,C\nx,"$1,200.50",5%\ny,$3,12%\n', [["x", 1200.5, 5.0], ["y", 3.0, 12.0]]),
    "excel.csv": (b"sep=;\nA;B\nx;1,5\n", [["x", 1.5]]),
    "titles-of-cells.csv": (b"By,me\nIn,2024\n\nA,B,C\nx,1,2\ny,2,3\n", [["x", 1, 2], ["y", 2, 3]]),
    "misleading-title.csv": (b"cells quoted by x; header in line 9\nA,B\nx,1\ny,2\n", [["x", 1], ["y", 2]]),
    "aligned.csv": (b"A      B   C\nBen    30  Rome\nAnna   31  Oslo\n", [["Ben", 30, "Rome"], ["Anna", 31, "Oslo"]]),
    "longer-rows.csv": (b"A,B\nx,1,\ny,2,\n", [["x", 1], ["y", 2]]),
    "empty-rows.csv": (b"A,B\nx,1\n,\ny,2\n,\n", [["x", 1], ["y", 2]]),
    "tall-header.csv": (b'Report\n\nA,"B\nC"\nx,1\n', [["x", 1]]),
    "codes.csv": (b"A,B\n00123,1\n04567,2\n", [["00123", 1], ["04567", 2]]),
    "words.csv": (b"A,B\nNA,true\nNone,false\n", [["NA", "true"], ["None", "false"]]),
    "missing.csv": (
        b"A,B,C\nNA,1.5,2024-02-14\nDE,NA,\nnull,2,-\n",
        [["NA", 1.5, DAY], ["DE", None, None], ["null", 2, None]],
    ),
    "missing-sums.csv": (b"A;B\nx;1,50 \xe2\x82\xac\ny;\nz;n/a\n", [["x", 1.5], ["y", None], ["z", None]]),
    "placed.xlsx": (
        sheet_at("C4", ["A", "B", None, "C"], ["NA", "00123", None, 5], [], ["x", "00456", None, 6]),
        [["NA", "00123", 5], ["x", "00456", 6]],
    ),
    "a.xlsx": (content_of("a.xlsx", "A,B,C\nx,1.5,2024-02-14\n"), [["x", 1.5, DAY]]),
    "list.json": (b'[{"A":"x","B":1.5},{"A":"y","C":true}]', [["x", 1.5, None], ["y", None, True]]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_program_loads_the_rows_that_the_reader_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content, rows = FILES[name]
    assert loaded(tmp_path, monkeypatch, name, content) == rows


HOSTILE = """a'); b"c \\ {df} {__import__('os')} ''' ."""


def test_names_and_values_never_become_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{mark}{HOSTILE}{mark}" for mark in ("1", "2\n", "3,")]
    out = io.StringIO()
    csv.writer(out).writerows([names, ["$1", "2024-01-02", HOSTILE]])
    [row] = loaded(tmp_path, monkeypatch, f"{HOSTILE}csv", f"Title\n\n{out.getvalue()}".encode())
    assert row == [1.0, datetime.datetime(2024, 1, 2), HOSTILE]
    records = json.dumps([{HOSTILE: HOSTILE}]).encode()
    assert loaded(tmp_path, monkeypatch, f"{HOSTILE}json", records) == [[HOSTILE]]


def test_of_several_sheets_the_only_one_with_a_table_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from openpyxl import Workbook

    book, out = Workbook(), io.BytesIO()
    sheet = book.create_sheet("Below; 5")
    sheet["B4"], sheet["B5"] = "n", 7
    sheet.sheet_state = "hidden"
    book.save(out)
    assert loaded(tmp_path, monkeypatch, "a.xlsx", out.getvalue()) == [[7]]
    for row in (["n"], [3]):
        book.worksheets[0].append(row)
    book.save(more := io.BytesIO())
    assert read("a.xlsx", more.getvalue()) is None


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b"just text"),
        ("a.csv", b"A,B\n"),
        ("a.csv", b"A,A\n1,2\n"),
        ("a.txt", b"A,B\n1,2\n"),
        ("a.json", b'{"a": 1}'),
        ("a.json", b'[{"a": '),
        ("a.json", b"[]"),
        ("a.csv", b""),
        ("a.csv", b'A,B,C\nx,"y,3\nz,w,4\n'),
        ("a.csv", b"A,B,C\n1,2,3\n4;5;6\n7,8,9\n"),
        ("a.csv", b"A,B\n'x,y',1\n'it''s',2\n'z',2\n"),
        ("a.csv", b'A,B\n"x \\"y\\", z",1\n"q\\"r",2\n'),
    ],
)
def test_anything_but_one_table_with_named_columns_is_not_loaded(name: str, content: bytes) -> None:
    assert read(name, content) is None
