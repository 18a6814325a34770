"""Web pages made by rule from templates and this project's own texts, each with what a reader of it wants to keep."""

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from random import Random
from string import Template
from typing import Literal

from evaluation.corpus import HERE, Half

Shape = Literal["article", "other"]
_MAIN = re.compile(r"<!--main-->(.*?)<!--/main-->", re.DOTALL)
_MARKS = re.compile(r"<!--/?main-->")
_TEXTS = ("travel-policy.md", "heat-pump-manual.md", "mountain-huts.md")
_LISTING = (
    '<pre><code class="language-python">def start(pump):\n    pump.prime()\n    return pump.run(4)\n</code></pre>'
)
_COLUMNS = ("Ticket", "Date", "Equipment", "Fault", "Work", "Technician", "Minutes", "Status")
_ARTICLES_OF_EACH, _OTHERS_OF_EACH = 4, 2
_BROKEN_LINES, _BLOCKS = ("gazette",), ("app",)  # templates whose paragraphs are parted by <br>, or are <div>


@dataclass(frozen=True, slots=True)
class WebPage:
    """A page of one kind of site; `main` is the HTML of what is to be kept of it."""

    kind: str
    shape: Shape
    half: Half
    html: str
    main: str


def web_pages() -> list[WebPage]:
    """All pages, always the same; of each kind every second one belongs to the test half."""
    return [*_made("articles", "article", _ARTICLES_OF_EACH), *_made("others", "other", _OTHERS_OF_EACH)]


def _made(folder: str, shape: Shape, count: int) -> Iterator[WebPage]:
    for path in sorted((HERE / "pages" / folder).glob("*.html")):
        template = Template(path.read_text(encoding="utf-8"))
        for number in range(count):
            html = template.substitute(_filling(path.stem, Random(f"{path.stem} {number}")))  # noqa: S311 - pages, not secrets
            half: Half = "test" if number % 2 else "development"
            main = "\n".join(_MAIN.findall(html))
            yield WebPage(path.stem, shape, half, _MARKS.sub("", html), main)


def _filling(kind: str, random: Random) -> dict[str, str]:
    sections = _sections(random.choice(_TEXTS))
    others = [one for name in _TEXTS for one in _sections(name)]
    first = random.randrange(len(sections) - 5)
    chosen = sections[first : first + random.randint(2, 5)]
    rows = random.sample(_log(), random.randint(6, 30))
    titles = [escape(title) for title, _ in random.sample(others, 9)]
    return {
        "title": escape(chosen[0][0]),
        "lead": _paragraph(random.choice(chosen[0][1])),
        "body": _body(chosen, kind, random),
        "menu": "".join(f'<li><a href="/s/{number}">{title}</a></li>' for number, title in enumerate(titles)),
        "linked": "<br>".join(f'<a href="/s/{number}">{title}</a>' for number, title in enumerate(titles)),
        "teasers": "".join(map(_teaser, random.sample(others, 5))),
        "comments": "".join(_comment(one, random) for one in random.sample(others, 4)),
        **_lists(rows, random),
    }


def _lists(rows: Sequence[Sequence[str]], random: Random) -> dict[str, str]:
    return {
        "count": str(len(rows)),
        "rows": "".join(map(_row, (_COLUMNS, *rows))),
        "options": "".join(f'<label><input type="radio">{escape(row[2])}</label> ' for row in rows[:8]),
        "entries": "".join(
            f'<div class="entry"><h3><a href="/t/{row[0]}">{row[5]} {escape(row[2])}</a></h3>'
            f"<div>{random.randint(1, 99)} Quay Street</div><div>+45 5550 {random.randint(1000, 9999)}</div></div>"
            for row in rows
        ),
        "results": "".join(
            f'<div class="g"><h3><a href="/url?{row[0]}">{escape(row[2])}: {escape(row[3])}</a></h3>'
            f"<cite>desk.example.org › {row[0]}</cite><span>{row[1]} — {escape(row[3])}. {escape(row[4])}, "
            f"{row[6]} minutes later closed.</span></div>"
            for row in rows
        ),
        "products": "".join(
            f'<div class="product"><a href="/p/{row[0]}"><img src="p.jpg" alt=""></a><h2><a href="/p/{row[0]}">'
            f"{escape(row[2])}</a></h2><p>{escape(row[4])}</p>"
            f'<span class="price">{row[6]}.90 €</span><button>Add</button></div>'
            for row in rows
        ),
        "slots": "".join(
            f"<tr><td rowspan=2>{day}</td><td>{escape(row[2])}</td><td>{row[5]}</td></tr>"
            f"<tr><td>{escape(row[3])}</td><td>free</td></tr>"
            for day, row in zip(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"), rows, strict=False)
        ),
        "questions": "".join(
            f"<details><summary>{escape(row[2])}: {escape(row[3].lower())}?</summary><p>{escape(row[4])}. It takes "
            f"{row[6]} minutes.</p></details>"
            if number % 2
            else f"<h3>{escape(row[3])}?</h3><p>{escape(row[4])}.</p>"
            for number, row in enumerate(rows)
        ),
        "specs": "".join(f"<tr><th>{escape(row[2])}</th><td>{row[6]}</td></tr>" for row in rows),
        "items": "".join(f"<li>{escape(row[2])}</li>" for row in rows),
    }


def _row(cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>\n"


def _teaser(section: tuple[str, list[str]]) -> str:
    title, parts = section
    start = escape(parts[0].partition(". ")[0])
    return f'<div class="teaser"><h3><a href="/s">{escape(title)}</a></h3><p>{start} …</p></div>'


def _comment(section: tuple[str, list[str]], random: Random) -> str:
    name = random.choice(("marlin", "old_salt", "k8", "Tess"))
    words = escape(parts if not (parts := section[1][0]).startswith("|") else section[0])
    when = f"{random.randint(2, 20)} hours ago"
    return f'<li class="comment"><b>{name}</b> <span>{when}</span><p>{words}</p><a href="#">Reply</a></li>'


def _body(sections: Sequence[tuple[str, list[str]]], kind: str, random: Random) -> str:
    made: list[str] = []
    for title, parts in sections:
        made.append(f"<br><b>{escape(title)}</b><br>" if kind in _BROKEN_LINES else f"<h2>{escape(title)}</h2>")
        made += (_part(part, kind, random) for part in parts)
    if kind == "docs":
        made.append(_LISTING)
    if kind == "recipe":
        steps = " ".join(sections[0][1]).split(". ")[:6]
        made.append(f"<ol>{''.join(f'<li>{escape(step)}</li>' for step in steps)}</ol>")
    return "\n".join(made[1:])


def _part(part: str, kind: str, random: Random) -> str:
    if part.startswith("|"):
        lines = [line.strip("|").split("|") for line in part.splitlines() if not line.startswith("|---")]
        return f"<table>{''.join(_row([cell.strip() for cell in line]) for line in lines)}</table>"
    text = _linked(escape(part), random)
    if kind in _BROKEN_LINES:
        return f"{text}<br><br>"
    return f'<div class="css-t">{text}</div>' if kind in _BLOCKS else f"<p>{text}</p>"


def _linked(text: str, random: Random) -> str:
    words = text.split(" ")
    if random.random() < 0.5 and len(words) > 12:
        place = random.randrange(3, len(words) - 4)
        words[place : place + 3] = [f'<a href="https://example.org/{place}">{" ".join(words[place : place + 3])}</a>']
    return " ".join(words)


def _paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def _sections(name: str) -> list[tuple[str, list[str]]]:
    text = (HERE / "documents" / name).read_text(encoding="utf-8")
    found = [part.strip().partition("\n") for part in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]]
    return [(title, body.strip().split("\n\n")) for title, _, body in found if body.strip()]


def _log() -> list[list[str]]:
    with (HERE / "documents" / "service-log.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]
