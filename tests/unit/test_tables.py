"""Reading CSV and TSV: every row is kept, whatever the delimiter, the line ends and the quotes."""

from __future__ import annotations

from time import process_time

import pytest

from task.documents.extract import extract
from task.documents.model import paginate
from tests.support.documents import SALES, csv_bytes


def table(*rows: str) -> str:
    header, *body = rows
    return "\n".join([header, "|" + " --- |" * (header.count(" |")), *body])


def test_a_report_becomes_a_markdown_table() -> None:
    found = extract("report.csv", csv_bytes(SALES))
    assert found.text.startswith(
        "| Date | Category | Sales | Profit |\n| --- | --- | --- | --- |\n| 2025-10-01 | A | 1200 |"
    )
    assert "| 2025-10-05 | A | 1700 | 425 |" in found.text
    assert found.notes == ("10 rows, 4 columns",)


@pytest.mark.fault("table: CSV with semicolons")
@pytest.mark.parametrize(
    ("name", "content", "note"),
    [
        ("a.csv", b"x,y\n1,2\n", None),
        ("a.csv", b"x;y\n1;2\n", "cells separated by semicolon"),
        ("a.csv", b"x\ty\n1\t2\n", "cells separated by tab"),
        ("a.csv", b"x|y\n1|2\n", "cells separated by pipe"),
        ("a.tsv", b"x\ty\n1\t2\n", None),
        ("a.tsv", b"x,y\n1,2\n", "cells separated by comma"),
        ("a.csv", b"sep=;\r\nx;y\r\n1;2\r\n", "cells separated by semicolon; header in line 2"),
    ],
)
def test_the_delimiter_is_detected(name: str, content: bytes, note: str | None) -> None:
    found = extract(name, content)
    assert found.text == table("| x | y |", "| 1 | 2 |")
    assert "; ".join(found.notes) == "; ".join([*([note] if note else []), "1 row, 2 columns"])


@pytest.mark.parametrize(
    ("content", "row"),
    [
        (b"a;b\n1,5;2,5\n3,5;4,5\n", "| 1,5 | 2,5 |"),
        (b"1,5;2,5\n3,5;4,5\n", "| 3,5 | 4,5 |"),
        (b"1,a;b,x\n2,c;d,y\n", "| 2 | c;d | y |"),
        (b'name,says\nann,"a; b; c"\nbob,"d; e"\n', "| ann | a; b; c |"),
        (b"a,b\n1,x|y\n", r"| 1 | x\|y |"),
    ],
)
def test_other_delimiters_inside_cells_do_not_mislead(content: bytes, row: str) -> None:
    assert row in extract("a.csv", content).text.splitlines()


@pytest.mark.fault("table: CSV in UTF-16")
def test_utf_16_with_semicolons_as_spreadsheets_write_it() -> None:
    found = extract("report.csv", csv_bytes(SALES, delimiter=";", encoding="utf-16"))
    assert "| 2025-10-05 | A | 1700 | 425 |" in found.text
    assert found.notes == ("encoding UTF-16 LE", "cells separated by semicolon", "10 rows, 4 columns")


@pytest.mark.fault("table: mixed line ends")
def test_mixed_line_ends_are_line_ends() -> None:
    found = extract("a.csv", b"a,b\r\n1,2\r3,4\n\r\n5,6")
    assert found.text == table("| a | b |", "| 1 | 2 |", "| 3 | 4 |", "| 5 | 6 |")
    assert found.notes == ("mixed line ends", "3 rows, 2 columns")


def test_quotes_line_ends_in_cells_and_pipes() -> None:
    found = extract("a.csv", b'a,b\n"x, y","line\r\nbreak"\n"say ""hi""",z|w\n')
    assert found.text == table("| a | b |", "| x, y | line<br>break |", '| say "hi" | z\\|w |')


@pytest.mark.fault("table: a ragged row")
def test_ragged_rows_are_kept_and_named() -> None:
    found = extract("a.csv", b"a,b,c\n1,2\n3,4,5,6\n7,8,9\n1,2,3\n")
    assert found.text == table(
        "| a | b | c |  |", "| 1 | 2 |  |  |", "| 3 | 4 | 5 | 6 |", "| 7 | 8 | 9 |  |", "| 1 | 2 | 3 |  |"
    )
    assert found.notes == ("4 rows, 4 columns", "2 rows without the usual 3 cells kept (line 2, 3)")


@pytest.mark.fault("table: CSV with a quote that is never closed")
def test_unbalanced_quotes_cost_no_row() -> None:
    found = extract("a.csv", b'a,b\n1,"2\n3,4\n')
    assert found.text == table("| a | b |", '| 1 | "2 |', "| 3 | 4 |")
    assert "unbalanced quotes kept as they are (line 2)" in found.notes


def test_lines_above_the_table_are_not_its_header() -> None:
    found = extract("a.csv", b"Sales report\n2025\n\nDate;Sale\n1;5\n2;6\n")
    assert found.text == "Sales report\n2025\n\n" + table("| Date | Sale |", "| 1 | 5 |", "| 2 | 6 |")


@pytest.mark.parametrize("word", ["NA", "null", "nan", "", "007", "1e5", "TRUE", " x "])
def test_cells_stay_as_they_were_written(word: str) -> None:
    assert f"| {word} | z |" in extract("a.csv", f"a,b\n{word},z\ny,z\n".encode()).text


def test_nul_bytes_are_removed_and_reported() -> None:
    found = extract("a.csv", b"a,b\n1,\x002\n" + b"3,4\n" * 10)
    assert found.text.startswith(table("| a | b |", "| 1 | 2 |", "| 3 | 4 |"))
    assert found.notes[0] == "NUL characters removed: 1"


def test_rows_without_text_are_dropped() -> None:
    found = extract("a.csv", b' \n, , , \na,b\n\n1,2\n , \n""\n3,4\n\t\n')
    assert found.text == table("| a | b |", "| 1 | 2 |", "| 3 | 4 |")
    assert found.notes == ("header in line 3", "2 rows, 2 columns", "empty rows left out (line 1, 2, 6, 7, 9)")


def test_a_header_without_rows_is_a_table() -> None:
    found = extract("a.csv", b"a,b,c\n")
    assert found.text == table("| a | b | c |")
    assert not found.is_empty


def test_one_column_is_a_table() -> None:
    assert extract("a.csv", b"name\nann\nbob\n").text == table("| name |", "| ann |", "| bob |")


@pytest.mark.fault("table: 1,000 columns")
def test_a_thousand_columns() -> None:
    rows = [[f"column {place}" for place in range(1_000)], *([[str(place) for place in range(1_000)]] * 3)]
    found = extract("a.csv", csv_bytes(rows))
    assert found.notes == ("3 rows, 1,000 columns",)
    assert found.text.splitlines()[2] == "| " + " | ".join(rows[1]) + " |"
    pages = paginate(found.blocks)
    assert "".join(pages) == found.text
    assert max(map(len, pages)) <= 10_000


def test_a_cell_too_long_for_a_table_leaves_the_text() -> None:
    content = b"a,b\n1," + b"x" * 200_000 + b"\n"
    found = extract("a.csv", content)
    assert found.text == content.decode()
    assert found.notes == ("not readable as a table, given as it is",)


@pytest.mark.system
def test_a_hundred_thousand_rows_are_pages_in_under_a_second_of_work() -> None:
    rows = [
        f"{row},2025-10-{row % 28 + 1:02},A{row % 5},north,{row * 3},{row * 2.5},{row % 7},note {row}"
        for row in range(100_000)
    ]
    content = "\n".join(["id,date,category,region,sales,profit,quantity,note", *rows]).encode()
    extract("warm.csv", b"a,b\n1,2\n")

    def seconds_of_work() -> float:
        started = process_time()
        assert len(paginate(extract("big.csv", content).blocks)) > 700
        return process_time() - started

    assert min(seconds_of_work() for _ in range(3)) < 1  # others on the machine only ever add to it


@pytest.mark.fault("table: a table without any text")
@pytest.mark.parametrize("content", ["sep=,\n", ",,\n,,\n", '"",""\n', "sep=;\n;;\n"])
def test_a_table_without_any_text_is_an_empty_document(content: str) -> None:
    assert extract("x.csv", content.encode()).is_empty


@pytest.mark.fault("table: CSV with a quote that is never closed")
@pytest.mark.parametrize("line", ['"x,2', 'x,"2'])
def test_a_quote_that_is_never_closed_costs_no_other_row(line: str) -> None:
    rows = [f'{row},"a, {row}"' for row in range(500)]
    found = extract("a.csv", "\n".join(["n,text", *rows, line, *rows]).encode())
    assert found.text.count("| 7 | a, 7 |") == 2
    assert f"| {line.replace(',', ' | ')} |" in found.text
    assert "unbalanced quotes kept as they are (line 502)" in found.notes


@pytest.mark.fault("table: CSV with unusual delimiters, quotes or escapes")
@pytest.mark.parametrize(
    ("content", "remarks"),
    [
        (b"x,y\n'1,5',2\n'say ''a''',3\n", ["cells quoted by '"]),
        (b"x,y\n`1,5`,2\n`say 'a'`,3\n", ["cells quoted by `"]),
        (b'x,y\n"1,5",2\n"say \\"a\\"",3\n', ["marks in cells escaped by backslash"]),
        (b"x,y\n1\\,5,2\nsay 'a',3\n", ["marks in cells escaped by backslash"]),
        (b'x, y\n"1,5", 2\n"say \'a\'", 3\n', ["spaces in front of cells left out"]),
        (b'x:y\n"1,5":2\n"say \'a\'":3\n', ["cells separated by colon"]),
        (b'x y\n"1,5" 2\n"say \'a\'" 3\n', ["cells separated by space"]),
        (b'x^y\n"1,5"^2\n"say \'a\'"^3\n', ["cells separated by ^"]),
    ],
)
def test_unusual_delimiters_quotes_and_escapes_are_detected(content: bytes, remarks: list[str]) -> None:
    found = extract("a.csv", content)
    assert found.text.replace('"', "'") == table("| x | y |", "| 1,5 | 2 |", "| say 'a' | 3 |")
    assert list(found.notes) == [*remarks, "2 rows, 2 columns"]


def test_columns_aligned_by_spaces_are_columns() -> None:
    found = extract("a.csv", b"name  n   town\nann   1   Riga\nbob   22  Oslo\n")
    assert found.text == table("| name | n | town |", "| ann | 1 | Riga |", "| bob | 22 | Oslo |")


@pytest.mark.parametrize(
    "lines",
    [
        ["Hall 9", "Hall 8"],
        ["10:30", "11:45"],
        ["2025-10-01 10:30:00", "2025-10-02 11:45:00"],
        ["Ana Maria Ruiz", "Juan José Gil"],
        ["it's", "'tis"],
        ["https://a.example/x", "https://b.example/y"],
    ],
)
def test_texts_with_spaces_colons_and_apostrophes_are_one_column(lines: list[str]) -> None:
    found = extract("a.csv", "\n".join(["what", *lines]).encode())
    assert found.text == table("| what |", *(f"| {line} |" for line in lines))


def test_a_backslash_that_escapes_nothing_stays() -> None:
    assert r"| C:\new\7 | 1 |" in extract("a.csv", b"path,n\nC:\\new\\7,1\nD:\\x,2\n").text
    found = extract("a.csv", b'path,n\n"C:\\new",1\n"say \\"x\\"",2\n').text
    assert r"| C:\new | 1 |" in found
    assert '| say "x" | 2 |' in found


@pytest.mark.fault("table: CSV with a row of another delimiter")
def test_a_row_with_another_delimiter_is_read_by_it_and_named() -> None:
    found = extract("a.csv", b"a,b,c\n1,2,3\n4;5;6\n7,8,9\n")
    assert found.text == table("| a | b | c |", "| 1 | 2 | 3 |", "| 4 | 5 | 6 |", "| 7 | 8 | 9 |")
    assert found.notes == ("3 rows, 3 columns", "separated by semicolon (line 3)")


def test_empty_columns_at_the_end_are_dropped() -> None:
    found = extract("a.csv", b"a,b,\n1,2,\n3,4,\n")
    assert found.text == table("| a | b |", "| 1 | 2 |", "| 3 | 4 |")
    assert found.notes == ("2 rows, 2 columns", "empty cells at the end left out (line 1, 2, 3)")


def test_cells_above_the_table_are_not_its_header() -> None:
    found = extract("a.csv", b"Report,2025\nMade by,the desk\n\na,b,c\n1,2,3\n4,5,6\n")
    above, rows = (
        table("| Report | 2025 |", "| Made by | the desk |"),
        table("| a | b | c |", "| 1 | 2 | 3 |", "| 4 | 5 | 6 |"),
    )
    assert found.text == f"{above}\n\n{rows}"


def test_comments_above_the_table_are_text() -> None:
    found = extract("a.csv", b"# by the desk, in euros\n# of 2025\na,b,c\n1,2,3\n4,5,6\n")
    rows = table("| a | b | c |", "| 1 | 2 | 3 |", "| 4 | 5 | 6 |")
    assert found.text == f"# by the desk, in euros\n# of 2025\n\n{rows}"


def test_one_control_character_does_not_make_a_small_file_binary() -> None:
    assert extract("a.csv", b"a,b\n1,x\x012\n").text == table("| a | b |", "| 1 | x\x012 |")
