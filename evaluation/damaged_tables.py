"""Tables written and damaged by rule, each with the cells that a reader should find again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from evaluation.corpus import Half

Rows = list[list[str]]
_OF_EACH = 10
_NAMES = ("O'Neill", "Ana Ruiz", "Jürgen Voß", "d'Arc", "Li Wei", "Zoë Ek", "Mads Holm", "Priya N.")
_WORDS = (
    "pump, dry", "valve; left", "gasket", "pipe 3/4\"", "lift | north", "the \"old\" boiler", "filter: coarse",
    "it's tight", "fan #4", "x", "two words", "semi;colon, and comma", "C:\\parts\\7", "", "it said 'no'", "50 % off",
)  # fmt: skip
_NOTES = (
    "ok",
    "see page 4, line 2",
    "first line\nsecond line",
    "call back",
    "n/a",
    "",
    "at 10:30 or 11:00",
    "https://a.example/x?y=1",
)


@dataclass(frozen=True, slots=True)
class Style:
    """How a table is written; `always` puts every cell in quotes."""

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""  # doubled quotes where empty
    always: bool = False
    end: str = "\n"


@dataclass(frozen=True, slots=True)
class DamagedTable:
    """A file of one kind, and its rows without the empty ones."""

    kind: str
    half: Half
    content: bytes
    rows: Rows


def damaged_tables() -> list[DamagedTable]:
    """All files, always the same; of each kind every second one belongs to the test half."""
    return [_made(kind, number) for kind in (*_STYLES, *_DAMAGE) for number in range(_OF_EACH)]


def _made(kind: str, number: int) -> DamagedTable:
    random = Random(f"{kind} {number}")  # noqa: S311 - tables, not secrets
    rows = _rows(random)
    if kind in _STYLES:
        if not _STYLES[kind].quote:
            rows = [[cell.replace("\n", " ") for cell in row] for row in rows]
        content = written(rows, _STYLES[kind]).encode()
    else:
        content, rows = _DAMAGE[kind](rows, random)
    half: Half = "test" if number % 2 else "development"
    return DamagedTable(kind, half, content, [row for row in rows if any(map(str.strip, row))])


def written(rows: Sequence[Sequence[str]], style: Style) -> str:
    return "".join(f"{style.delimiter.join(_cell(cell, style) for cell in row)}{style.end}" for row in rows)


def _cell(cell: str, style: Style) -> str:
    special = (style.delimiter[0], style.quote, "\n", "\r") if style.quote else (style.delimiter[0], style.escape)
    if not style.quote:
        return "".join(style.escape + letter if letter in special else letter for letter in cell)
    if not style.always and not any(mark in cell for mark in special) and not (style.delimiter == " " and not cell):
        return cell
    inner = cell.replace(style.escape, style.escape * 2) if style.escape else cell
    return f"{style.quote}{inner.replace(style.quote, (style.escape or style.quote) + style.quote)}{style.quote}"


_MAKERS: tuple[tuple[str, Callable[[Random], str]], ...] = (
    ("Name", lambda random: random.choice(_NAMES)),
    ("Article", lambda random: random.choice(_WORDS)),
    ("Date", lambda random: f"20{random.randint(10, 25)}-{random.randint(1, 12):02}-{random.randint(1, 28):02}"),
    ("Price", lambda random: f"{random.randint(0, 900)}.{random.randint(0, 99):02}"),
    ("Count", lambda random: str(random.randint(0, 2000))),
    ("Time", lambda random: f"{random.randint(0, 23):02}:{random.randint(0, 59):02}"),
    ("Note", lambda random: random.choice(_NOTES)),
    ("Code", lambda random: f"{random.choice('ABC')}-{random.randint(1, 99):03}"),
    ("Place, room", lambda random: f"Hall {random.randint(1, 9)}"),
)


def _rows(random: Random) -> Rows:
    columns = random.sample(_MAKERS, random.randint(3, 8))
    return [
        [name for name, _ in columns],
        *([make(random) for _, make in columns] for _ in range(random.randint(4, 40))),
    ]


_STYLES = {
    "comma": Style(),
    "comma, all in quotes": Style(always=True),
    "semicolon": Style(";"),
    "tab": Style("\t"),
    "pipe": Style("|"),
    "colon": Style(":"),
    "space": Style(" "),
    "caret": Style("^"),
    "comma and space": Style(", "),
    "single quotes": Style(quote="'"),
    "single quotes, all": Style(quote="'", always=True),
    "semicolon, single quotes": Style(";", quote="'"),
    "backticks": Style(quote="`", always=True),
    "backslash before quotes": Style(escape="\\"),
    "backslash, all in quotes": Style(escape="\\", always=True),
    "backslash, single quotes": Style(quote="'", escape="\\"),
    "tab, backslash": Style("\t", escape="\\", always=True),
    "no quotes, backslash": Style(quote="", escape="\\"),
    "semicolon, no quotes, backslash": Style(";", quote="", escape="\\"),
    "line ends of old Macs": Style(end="\r"),
    "line ends of Windows": Style(end="\r\n"),
}
Damage = Callable[[Rows, Random], tuple[bytes, Rows]]


def _encoded(encoding: str) -> Damage:
    return lambda rows, random: (written(rows, Style()).encode(encoding, "replace"), _through(rows, encoding))


def _through(rows: Rows, encoding: str) -> Rows:
    return [[cell.encode(encoding, "replace").decode(encoding) for cell in row] for row in rows]


def _decimal_commas(rows: Rows, random: Random) -> tuple[bytes, Rows]:
    changed = [[cell.replace(".", ",") if cell.replace(".", "").isdigit() else cell for cell in row] for row in rows]
    return written(changed, Style(";")).encode(), changed


def _around(above: Rows, below: Rows, gap: str = "\n") -> Damage:
    def damage(rows: Rows, random: Random) -> tuple[bytes, Rows]:
        parts = (_lines(above), gap if above else "", written(rows, Style()), gap if below else "", _lines(below))
        return "".join(parts).encode(), [*above, *rows, *below]

    return damage


def _lines(rows: Rows) -> str:
    return "".join(f"{','.join(row)}\n" for row in rows)


def _each(change: Callable[[str, Random], str]) -> Damage:
    def damage(rows: Rows, random: Random) -> tuple[bytes, Rows]:
        return "".join(change(written([row], Style()), random) for row in rows).encode(), rows

    return damage


def _one_row(change: Callable[[list[str], Random], tuple[str, list[str]]]) -> Damage:
    def damage(rows: Rows, random: Random) -> tuple[bytes, Rows]:
        place = random.randrange(1, len(rows))
        line, row = change(rows[place], random)
        before, after = rows[:place], rows[place + 1 :]
        return f"{written(before, Style())}{line}\n{written(after, Style())}".encode(), [*before, row, *after]

    return damage


def _line(row: Sequence[str], style: Style | None = None) -> str:
    return written([row], style or Style()).removesuffix("\n")


def _plain(row: list[str]) -> list[str]:
    return [" ".join(cell.replace('"', "").replace(",", "").split()) for cell in row]


def _without_end(row: list[str], random: Random) -> tuple[str, list[str]]:
    place, plain = random.randrange(len(row)), _plain(row)
    cells = [*plain[:place], f'"{plain[place]}', *plain[place + 1 :]]
    return ",".join(cells), cells


def _quote_inside(row: list[str], random: Random) -> tuple[str, list[str]]:
    place, plain = random.randrange(len(row)), _plain(row)
    cells = [*plain[:place], f'{plain[place]}x" 3', *plain[place + 1 :]]
    return ",".join(cells), cells


def _repeated(rows: Rows, random: Random) -> tuple[bytes, Rows]:
    place = random.randrange(2, len(rows))
    changed = [*rows[:place], rows[0], *rows[place:]]
    return written(changed, Style()).encode(), changed


def _stacked(rows: Rows, random: Random) -> tuple[bytes, Rows]:
    lower = [row[:2] for row in rows[:4]]
    return f"{written(rows, Style())}\n{written(lower, Style())}".encode(), [*rows, *lower]


def _nuls(rows: Rows, random: Random) -> tuple[bytes, Rows]:
    content = bytearray(written(rows, Style()).encode())
    for _ in range(3):
        content.insert(random.randrange(len(content)), 0)
    return bytes(content), rows


_DAMAGE: dict[str, Damage] = {
    "UTF-8 with a mark": _encoded("utf-8-sig"),
    "UTF-16": _encoded("utf-16"),
    "Windows-1252": _encoded("cp1252"),
    "decimal commas": _decimal_commas,
    "title above": _around([["Report of the year"]], []),
    "titles with cells above": _around([["Report", "2025"], ["Made by", "the desk"]], []),
    "comments above": _around([["# made on Monday, by the desk"], ["# units: euros"]], [], gap=""),
    "sum below": _around([], [["End of the list"]]),
    "empty lines": _each(lambda line, random: line + "\n" * (random.random() < 0.3)),
    "trailing delimiters": _each(lambda line, random: f"{line[:-1]},\n"),
    "a cell too many": _one_row(lambda row, random: (_line([*row, "more"]), [*row, "more"])),
    "a cell too few": _one_row(lambda row, random: (_line(row[:-1]), row[:-1])),
    "a row with semicolons": _one_row(lambda row, random: (_line(row, Style(";")), row)),
    "a row with tabs": _one_row(lambda row, random: (_line(row, Style("\t")), row)),
    "a quote that is never closed": _one_row(_without_end),
    "a quote inside a cell": _one_row(_quote_inside),
    "a row in single quotes": _one_row(lambda row, random: (_line(row, Style(quote="'", always=True)), row)),
    "header repeated": _repeated,
    "two tables": _stacked,
    "NUL bytes": _nuls,
    "no header": lambda rows, random: (written(rows[1:], Style()).encode(), rows[1:]),
    "one row only": lambda rows, random: (written(rows[:2], Style()).encode(), rows[:2]),
    "one column": lambda rows, random: (
        written([row[:1] for row in rows], Style()).encode(),
        [row[:1] for row in rows],
    ),
}
