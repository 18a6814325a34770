"""How much of a web page's main content is kept, and how much of the rest: precision and recall of word shingles."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean

from bs4 import BeautifulSoup, Tag

from evaluation.corpus import Half
from evaluation.web_pages import WebPage, web_pages
from task.documents.extract import extract

_WORDS = re.compile(r"\w+")
_ADDRESS = re.compile(r"\]\([^)\s]*\)")
_SHINGLE = 4
Reader = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Kept:
    """The figures of one page; `lost` counts headings and table rows of the main content that are missing."""

    page: WebPage
    precision: float
    recall: float
    lost: int


def ours(html: str) -> str:
    return extract("page.html", html.encode()).text


def librarys(html: str) -> str:
    import trafilatura

    return trafilatura.extract(html, output_format="markdown", include_links=True, include_comments=False) or ""


def measured(read: Reader, pages: Iterable[WebPage]) -> list[Kept]:
    return [_kept(page, read(page.html)) for page in pages]


def html_report(half: Half) -> str:
    """The tables of one half, the product beside trafilatura's own Markdown."""
    pages = [page for page in web_pages() if page.half == half]
    pairs = list(zip(measured(ours, pages), measured(librarys, pages), strict=True))
    rows = [
        _line(f"all {shape}s", [pair for pair in pairs if pair[0].page.shape == shape])
        for shape in ("article", "other")
    ]
    rows += [_line(kind, list(group)) for kind, group in groupby(pairs, key=lambda pair: pair[0].page.kind)]
    figures = ("precision", "recall", "F1", "lost")
    head = ("Kind", "n", *figures, *(f"trafilatura {name}" for name in figures))
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))


def _line(name: str, pairs: Sequence[tuple[Kept, Kept]]) -> list[str]:
    sides = [list(side) for side in zip(*pairs, strict=True)]
    figures = [[*(f"{value:.3f}" for value in score(side)), str(sum(one.lost for one in side))] for side in sides]
    return [name, str(len(pairs)), *figures[0], *figures[1]]


def score(kept: Sequence[Kept]) -> tuple[float, float, float]:
    """Precision, recall and F1, the first two averaged over the pages."""
    precision, recall = fmean(one.precision for one in kept), fmean(one.recall for one in kept)
    return precision, recall, 2 * precision * recall / (precision + recall)


def _kept(page: WebPage, text: str) -> Kept:
    main = BeautifulSoup(re.sub("<button>.*?</button>", "", page.main), "html.parser")
    text = _ADDRESS.sub("] ", text)
    lines = [_plain(line) for line in text.splitlines()]
    wanted, found = _shingles(main.get_text(" ")), _shingles(text)
    common = (wanted & found).total()
    precision = common / found.total() if found else float(not wanted)
    return Kept(page, precision, common / wanted.total(), sum(not _holds(lines, tag) for tag in _landmarks(main)))


def _shingles(text: str) -> Counter[tuple[str, ...]]:
    words = _WORDS.findall(text.lower())
    return Counter(zip(*(words[start:] for start in range(_SHINGLE)), strict=False))


def _landmarks(main: BeautifulSoup) -> list[Tag]:
    return [
        tag
        for tag in main.find_all(re.compile("^(h[1-6]|tr|summary|legend)$"))
        if tag.name != "tr" or (len(tag.find_all(["td", "th"])) > 1 and not tag.table)
    ]


def _holds(lines: Sequence[str], tag: Tag) -> bool:
    # A row's cells are on one line, in whatever dress; a heading is one.
    cells = [_plain(cell.get_text(" ")) for cell in tag.find_all(["td", "th"])] or [_plain(tag.get_text(" "))]
    return any(all(cell in line for cell in cells) for line in lines)


def _plain(text: str) -> str:
    return " ".join(_WORDS.findall(text.lower()))
