"""Reading workbooks: every sheet under its name, every cell as Excel shows it."""

from datetime import date, datetime, time, timedelta

import pytest

from task.documents.extract import extract
from task.documents.model import Extraction
from task.documents.xlsx import MOST_ROWS, shown_as
from tests.support.documents import SALES
from tests.support.office import new_workbook, saved, sheet_file, with_parts


def read(content: bytes) -> Extraction:
    return extract("a.xlsx", content)


def test_a_report_becomes_a_markdown_table_under_its_sheets_name() -> None:
    workbook, _ = new_workbook(SALES, "Sales 2025")
    found = read(saved(workbook))
    heading, table = found.blocks
    assert (heading.text, heading.page) == ("## Sheet: Sales 2025", 1)
    assert table.heading == "| Date | Category | Sales | Profit |\n| --- | --- | --- | --- |"
    assert table.text.splitlines() == [f"| {' | '.join(row)} |" for row in SALES[1:]]
    assert found.notes == ()


def test_dates_percentages_and_numbers_look_as_they_do_in_excel() -> None:
    values = (
        (date(2025, 10, 1), "yyyy-mm-dd", "2025-10-01"),
        (datetime(2025, 10, 1, 14, 5), "d mmm yyyy h:mm AM/PM", "1 Oct 2025 2:05 PM"),
        (time(9, 30), "hh:mm", "09:30"),
        (timedelta(hours=30, minutes=5), "[h]:mm", "30:05"),
        (0.125, "0.0%", "12.5%"),
        (1234567.891, "#,##0.00", "1,234,567.89"),
        (-5, "#,##0.00;[Red](#,##0.00)", "(5.00)"),
        (19.9, "[$€-407] #,##0.00", "€ 19.90"),
        (7, "00000", "00007"),
        (0.1 + 0.2, "General", "0.3"),
        (True, "General", "TRUE"),
        ("1|2\n3", "General", "1\\|2<br>3"),
    )
    workbook, sheet = new_workbook([("shown",), *((value,) for value, *_ in values)])
    for row, (_, code, _) in enumerate(values, 2):
        sheet.cell(row, 1).number_format = code
    (_, table) = read(saved(workbook)).blocks
    assert table.text.splitlines() == [f"| {shown} |" for *_, shown in values]

    workbook, sheet = new_workbook([("day",), (0,)])
    sheet.cell(2, 1).number_format = "yyyy-mm-dd"
    workbook.epoch = datetime(1904, 1, 1)
    assert read(saved(workbook)).blocks[1].text == "| 1904-01-01 |"


@pytest.mark.parametrize(
    ("code", "number", "shown"),
    [
        ("0", 2.5, "3"),
        ("#.##", 0.5, ".5"),
        ("#.##", 2, "2"),
        ("0.00E+00", 12345, "1.23E+04"),
        ("#,##0,", 1_234_567, "1,235"),
        ('0 "kg"', 3, "3 kg"),
        ("0.00;-0.00;zero", 0, "zero"),
        ("dddd d mmmm yy", 45931, "Wednesday 1 October 25"),
        ("mm:ss.0", 0.000734, "01:03.4"),
        ("yyyy-mm-dd", 1, "1900-01-01"),
        ("yyyy-mm-dd", -1, "-1"),
        ("yyyy-mm-dd", 1e300, "1e+300"),
        ("0.00", 1e300, "1e+300"),
        ("# ?/?", 0.5, "0.5"),
        ('General "pcs"', 5.5, "5.5 pcs"),
        ('"always"', 5, "5"),
        ("", 5, "5"),
    ],
)
def test_format_codes(code: str, number: float, shown: str) -> None:
    assert shown_as(code)(number) == shown


def test_merged_cells_repeat_their_text_and_ranges_over_the_whole_sheet_cost_nothing() -> None:
    workbook, sheet = new_workbook(
        [("Quarterly report", None, None), (None,), ("Region", "Q1", "Q2"), ("North", 1, 2), (None, 3, 4)]
    )
    sheet.merge_cells("A1:C1")
    sheet.merge_cells("A4:A5")
    assert read(saved(workbook)).text == (
        "## Sheet: Data\n\nQuarterly report\n\n"
        "| Region | Q1 | Q2 |\n| --- | --- | --- |\n| North | 1 | 2 |\n| North | 3 | 4 |"
    )

    ranges = '<mergeCell ref="A1:XFD1048576"/>' * 10_000
    found = read(sheet_file("<row r='1'><c r='A1'><v>1</v></c></row>", after=f"<mergeCells>{ranges}</mergeCells>"))
    assert found.blocks[1].whole == "| 1 |\n| --- |"


def test_hidden_and_empty_sheets_are_named_and_tables_located() -> None:
    workbook, _ = new_workbook([(None, "x", "y", None, "z"), (None, 1, 2, None, 3)], "Plain")
    titled = workbook.create_sheet("Titled")
    for row in (["Report"], [], ["x", "y"], [1, 2], [], [3, 4]):
        titled.append(row)
    found = read(saved(workbook))
    assert found.notes == (
        "sheet Plain: header in row 1, columns B:C,E",
        "sheet Titled: header in row 3, columns A:B, empty rows left out",
    )

    workbook, _ = new_workbook([("a", "b")])
    hidden = workbook.create_sheet("Costs")
    hidden["B2"] = 7
    hidden.sheet_state = "hidden"
    workbook.create_sheet("Nothing")
    found = read(saved(workbook))
    assert found.text.endswith("## Sheet: Costs (hidden)\n\n| 7 |\n| --- |\n\n## Sheet: Nothing\n\n(empty)")
    assert [block.page for block in found.blocks] == [1, 1, 2, 2, 3]
    assert found.notes == ("hidden sheets: Costs",)


def test_formulas_give_their_saved_value_and_every_kind_of_cell_is_shown() -> None:
    cells = "<c><v>2</v></c><c><f>A1*2</f><v>4</v></c><c><f>A1*3</f></c><c t='str'><f>B1&amp;\"x\"</f><v>4x</v></c>"
    found = read(sheet_file(f"<row>{cells}</row>"))
    assert found.blocks[1].heading.startswith("| 2 | 4 | =A1*3 | 4x |")
    assert found.notes == ("formulas without a saved value, shown as they are: 1",)

    rows = (
        "<row r='1'><c r='A1' t='s'><v>0</v></c><c r='C1' t='inlineStr'><is><r><t>in</t></r><r><t>line</t></r></is></c>"
        "<c r='D1' t='e'><v>#DIV/0!</v></c><c r='E1' t='b'><v>0</v></c><c r='F1' t='s'><v>99</v></c>"
        "<c r='G1' t='d'><v>2025-10-01</v></c><c r='H1'><v>nonsense</v></c></row>"
    )
    strings = "<si><r><t>sha</t></r><r><t>red_x000A_text</t></r><rPh><t>no</t></rPh></si>"
    assert read(sheet_file(rows, strings=strings)).blocks[1].heading.splitlines()[0] == (
        "| shared<br>text | inline | #DIV/0! | FALSE | 2025-10-01 | nonsense |"
    )


@pytest.mark.fault("office: XLSX with 1,000,000 rows")
@pytest.mark.fault("office: a sheet with one cell far to the right")
def test_huge_sheets_are_cut_off_with_a_note_or_cost_nothing() -> None:
    found = read(sheet_file("<row><c><v>7</v></c><c><v>8</v></c></row>" * 1_000_000))
    assert found.blocks[1].text.count("\n") == MOST_ROWS - 2
    assert found.notes == ("sheet Data: cut off after 100,000 rows",)

    rows = "".join(f"<row r='{row}'><c r='XFD{row}'><v>{row}</v></c></row>" for row in range(2, 200))
    found = read(sheet_file(f"<row r='1'><c r='A1'><v>1</v></c><c r='XFD1'><v>2</v></c></row>{rows}"))
    assert found.blocks[1].text.splitlines()[0] == "|  | 2 |"


@pytest.mark.fault("office: macros")
def test_a_workbook_with_macros_is_read_without_them() -> None:
    workbook, _ = new_workbook([("a",)])
    found = extract("a.xlsm", with_parts(saved(workbook), {"xl/vbaProject.bin": b"Sub Auto_Open()"}))
    assert found.text == "## Sheet: Data\n\n| a |\n| --- |"
    assert found.notes == ("contains macros; they were not run",)
