"""Reader of PDF: text, ruled tables, form fields and scanned pages, also of a damaged file."""

import ctypes
import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from io import BytesIO
from itertools import groupby
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as c

from task.documents.model import Block, Extraction, NotText, Unreadable, as_markdown, counted, runs_of
from task.documents.pdf_layout import (
    CHAR_BOX,
    Box,
    Cells,
    Grid,
    Marks,
    PageFrame,
    TextRun,
    corners_of,
    grids_of,
    in_reading_order,
    may_have_columns,
)
from task.documents.pdf_recovery import salvaged

MAX_PAGES = 5_000
TABLE_SECONDS = 20.0
READ_SECONDS = 45.0
_LOCKS = (4, 5)  # pdfium's codes for a missing password and for an unknown kind of encryption
_PADDING = b"\0\r\n\t "
_MOST_RANGES = 20

_BY_OCR = "read by OCR, mistakes are likely"
_PICTURE = "without text, scanned or drawn"
_BLANK, _LOST = "without text, blank", "without text, lost or blank"
_NOISE = "without readable text, its letters cannot be identified"
_BROKEN = "damaged and not read"
_PLAIN_TABLES = "tables given as plain text"
_PAGE_NOTES = (_BY_OCR, _PICTURE, _BLANK, _LOST, _NOISE, _BROKEN, _PLAIN_TABLES)

HOW_TO_GET_IT = "install Tesseract, the Debian package tesseract-ocr, to have them read"
_OCR_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"
_DOTS_PER_INCH = 200
_MOST_PIXELS = 16_000_000
_MOST_LANGUAGES = 4
_LINE_END__HYPHEN = re.compile(r"[\x02\ufffe][\n ]?(?=(\w?))")
_UNREADABLE = re.compile(r"[\x00-\x08\x0b-\x1f\ue000-\uf8ff\ufffd]")
# Match the leading space too, or trailing spaces backtrack quadratically.
_WORDS = re.compile(r"(?<![\s\0])([\s\0]*)([^\s\0\x02]*\x02|[^\s\0\x02]+)")
_FEW_LETTERS = 20
_EDGES_OF_A_TABLE = 5
_SHAPES_OF_A_TEXT = 20
_MOST_OF_THE_PAGE = 0.5
_SMALLEST_GAP = 9.0
_HYPHEN = "\x02"  # pdfium's mark of a hyphen that ends a line, which its text omits together with the line end


@dataclass(slots=True)
class Ocr:
    """Tesseract, where it is installed, for pages that are pictures: `pages` in at most `seconds` from the first."""

    pages: int = 20
    seconds: float = 45.0
    command: str | None = field(default_factory=lambda: shutil.which("tesseract", path=_OCR_PATH))
    _until: float | None = None
    _languages: str = ""

    def text_of(self, page: Any) -> str | None:
        """The text recognised on a pypdfium2 page; None without Tesseract, or when its budget is used up."""
        if self.command is None or self.pages <= 0:
            return None
        self._until = self._until or time.monotonic() + self.seconds
        left = self._until - time.monotonic()
        if left <= 0:
            return None
        self.pages -= 1
        try:
            if not self._languages:
                listed = self._run(["--list-langs"], b"", 10).splitlines()[1:]
                names = sorted((name for name in listed if name != "osd"), key=lambda name: name != "eng")
                self._languages = "+".join(names[:_MOST_LANGUAGES]) or "eng"
            width, height = page.get_size()
            scale = min(_DOTS_PER_INCH / 72, (_MOST_PIXELS / max(1.0, width * height)) ** 0.5)
            picture = BytesIO()
            with closing(page.render(scale=scale, grayscale=True, may_draw_forms=False)) as bitmap:
                bitmap.to_pil().save(picture, "PPM")
            return self._run(["-", "-", "-l", self._languages], picture.getvalue(), left)
        except (subprocess.SubprocessError, OSError):
            return None

    def _run(self, arguments: list[str], given: bytes, seconds: float) -> str:
        result = subprocess.run(  # noqa: S603 - a fixed command, the picture comes through a pipe
            [str(self.command), *arguments], input=given, capture_output=True, timeout=seconds, check=True
        )
        return result.stdout.decode(errors="replace").replace("\f", "").strip()


def read_pdf(content: bytes, content_type: str = "", *, ocr: Ocr | None = None) -> Extraction:
    """Blocks of text, tables and form fields, each with its page number; pages without text are named in the notes.

    `ocr` reads the pages that are pictures. A truncated file gives the pages that are left, a long one its first pages,
    a slow one those that were read in time.
    """
    if b"%PDF-" not in content[:1024] and b" obj" not in content:
        raise NotText("this is not a PDF")
    reading = _Reading(content, ocr or Ocr())
    with reading.document:
        blocks = tuple(reading.blocks())
        return Extraction(blocks, tuple(reading.notes()))


class _Reading:
    """One pass over the pages of a document, within its limits, and the report on it."""

    def __init__(self, content: bytes, ocr: Ocr) -> None:
        self._ocr = ocr
        self._seconds = 0.0  # OCR has a limit of its own
        self._fields = 0
        self._last_page: int | None = None
        self._file_notes: list[str] = []
        self._noted_pages: defaultdict[str, list[int]] = defaultdict(list)
        self._without_text = _BLANK
        self.document = self._opened(content)

    def blocks(self) -> Iterator[Block]:
        total = len(self.document)
        for number in range(1, total + 1):
            if number > MAX_PAGES or self._seconds > READ_SECONDS:
                self._last_page = number - 1
                return
            blocks: list[Block] = []
            try:
                with closing(self.document[number - 1]) as page:
                    blocks = self._read(page, number)
            except pdfium.PdfiumError:
                self._noted_pages[_BROKEN].append(number)
            if blocks and total > 1:
                yield Block(f"[Page {number}]", page=number)
            yield from blocks

    def notes(self) -> Iterator[str]:
        total = len(self.document)
        yield counted(total, "page")
        if self._last_page is not None:
            yield f"cut off: only pages 1-{self._last_page:,} were read"
        yield from self._file_notes
        no_ocr = "OCR found nothing or had reached its limit" if self._ocr.command else HOW_TO_GET_IT
        for note in _PAGE_NOTES:
            if pages := self._noted_pages.get(note):
                runs = runs_of(pages)
                ranges = [f"{first}-{last}" if last > first else str(first) for first, last in runs[:_MOST_RANGES]]
                listed = ", ".join(ranges) + ", ..." * (len(runs) > _MOST_RANGES)
                plural = "" if len(pages) == 1 else "s"
                yield f"{note}: page{plural} {listed}{f' ({no_ocr})' if note == _PICTURE else ''}"
        if self._fields:
            yield f"form fields: {self._fields}"
        if attachments := self.document.count_attachments():
            yield f"embedded files not read: {attachments}"

    def _opened(self, content: bytes) -> Any:
        try:
            document = pdfium.PdfDocument(content)
            if b"%%EOF" not in content.rstrip(_PADDING)[-2048:]:
                self._file_notes.append("the file is damaged at its end: pages may be missing")
        except pdfium.PdfiumError as error:
            if error.err_code in _LOCKS:
                raise Unreadable(
                    "it is encrypted and needs a password. Ask the user for a copy without one."
                ) from error
            try:
                document = pdfium.PdfDocument(salvaged(content) or b"")
            except pdfium.PdfiumError as error:
                raise Unreadable("it is damaged and no page of it is left. Ask the user to send it again.") from error
            self._file_notes.append("the file is damaged or cut off: these are the pages that could be recovered")
            self._without_text = _LOST
        if pdfium.raw.FPDF_GetSecurityHandlerRevision(document) > 0:
            self._file_notes.append("encrypted, opened without a password")
        if document.get_formtype():
            document.init_forms()
        return document

    def _read(self, page: Any, number: int) -> list[Block]:
        started, with_tables = time.monotonic(), self._seconds < TABLE_SECONDS
        frame = PageFrame(page)
        marks = Marks(page, frame)
        grids = grids_of(tuple(marks.edges)) if with_tables else None
        with closing(page.get_textpage()) as textpage:
            if grids or may_have_columns(textpage, is_lying=page.get_rotation() in (90, 270)):
                blocks = list(_laid_out(textpage, frame, grids or (), number))
            else:
                blocks = [Block(_plain(textpage.get_text_range()), page=number)]
        fields = list(_fields_of(page, self.document.formenv)) if self.document.formenv else []
        self._seconds += time.monotonic() - started
        self._fields += len(fields)
        if grids is None and (with_tables or len(marks.edges) >= _EDGES_OF_A_TABLE):
            self._noted_pages[_PLAIN_TABLES].append(number)
        text = "".join(block.whole for block in blocks)
        letters = len("".join(text.split()))
        # Letters that the file gives no meaning to, and text that can only be seen: a scan with no more than a page
        # number, or letters drawn as shapes.
        is_noise = len(_UNREADABLE.findall(text)) > 0.3 * len(text)
        is_scan = letters < _FEW_LETTERS and marks.pictures >= _MOST_OF_THE_PAGE
        is_picture = is_scan or (not letters and (marks.pictures > 0 or marks.shapes >= _SHAPES_OF_A_TEXT))
        if is_noise or is_picture or not (letters or fields):
            seen = self._ocr.text_of(page) if is_noise or is_picture else None
            note = _NOISE if is_noise else _PICTURE if is_picture else self._without_text
            self._noted_pages[_BY_OCR if seen else note].append(number)
            if seen:
                blocks = [Block(seen, page=number)]
            elif is_noise or not letters:
                blocks = []
        if fields:
            blocks.append(Block("Form fields:\n" + "\n".join(f"- {line}" for line in fields), page=number))
        return blocks


def _fields_of(page: Any, form: Any) -> Iterator[str]:
    # One line per form field: `name: value`; a box is `checked` or `not checked`.
    for index in range(c.FPDFPage_GetAnnotCount(page)):
        annotation = c.FPDFPage_GetAnnot(page, index)
        if not annotation:
            continue
        try:
            kind = c.FPDFAnnot_GetFormFieldType(form, annotation)
            name = _string(c.FPDFAnnot_GetFormFieldName, form, annotation)
            label = _string(c.FPDFAnnot_GetFormFieldAlternateName, form, annotation)
            value = _string(c.FPDFAnnot_GetFormFieldValue, form, annotation)
            is_checked = bool(c.FPDFAnnot_IsChecked(form, annotation))
        finally:
            c.FPDFPage_CloseAnnot(annotation)
        shown = f"{name} ({label})" if name and label and label != name else name or label
        if kind == c.FPDF_FORMFIELD_CHECKBOX:
            yield f"{shown}: {'checked' if is_checked else 'not checked'}"
        elif kind == c.FPDF_FORMFIELD_RADIOBUTTON and is_checked:
            yield f"{shown}: {value}"
        elif kind in (c.FPDF_FORMFIELD_TEXTFIELD, c.FPDF_FORMFIELD_COMBOBOX, c.FPDF_FORMFIELD_LISTBOX):
            yield f"{shown}: {' '.join(value.split()) or '(empty)'}"


def _string(read: Callable[..., int], form: Any, annotation: Any) -> str:
    size = read(form, annotation, None, 0)
    buffer = ctypes.create_string_buffer(size)
    read(form, annotation, ctypes.cast(buffer, ctypes.POINTER(c.FPDF_WCHAR)), size)
    return buffer.raw[: max(0, size - 2)].decode("utf-16-le", errors="replace").strip()


def _laid_out(textpage: Any, frame: PageFrame, grids: Sequence[Grid], number: int) -> Iterator[Block]:
    owner = {cell: grid for grid in grids for cell in grid.cells}
    texts: dict[Box, list[str]] = {cell: [] for cell in owner}
    runs: list[TextRun] = []
    placed: set[int] = set()
    for run in _runs(textpage, frame, Cells(owner)):
        if run.cell is None:
            runs.append(run)
            continue
        texts[run.cell].append(run.text)
        if id(grid := owner[run.cell]) not in placed:
            placed.add(id(grid))
            runs.append(TextRun("", grid.box, run.line, grid=grid))
    for is_text, group in groupby(in_reading_order(runs), key=lambda run: run.grid is None):
        if is_text:
            lines = [" ".join(run.text for run in line) for _, line in groupby(group, key=lambda run: run.line)]
            yield Block(_plain("\n".join(lines)), page=number)
        else:
            for grid in (run.grid for run in group if run.grid):
                rows = [[_plain(" ".join(texts[cell])) if cell else "" for cell in row] for row in grid.rows]
                yield as_markdown(rows, number)


def _plain(text: str) -> str:
    if "\x02" in text or "\ufffe" in text:
        text = _LINE_END__HYPHEN.sub(lambda found: "" if found[1].islower() else "-", text)
    return text.replace("\r\n", "\n")


def _runs(textpage: Any, frame: PageFrame, cells: Cells) -> list[TextRun]:
    runs: list[TextRun] = []
    line, last, cell = 0, None, None
    raw, corners, places = corners_of(textpage)

    def box_at(index: int) -> Box:
        CHAR_BOX(raw, index, *places)
        left, right, bottom, top = corners[:]
        return frame.box(left, bottom, right, top)

    def cell_at(index: int, near: Box | None) -> Box | None:
        CHAR_BOX(raw, index, *places)
        left, right, bottom, top = corners[:]
        x, y = frame.middle(left, bottom, right, top)
        return near if near is not None and near.holds(x, y) else cells.around(x, y)

    def letters(word: str, start: int) -> Iterator[tuple[str, Box, Box | None]]:
        for index, letter in enumerate(word, start):
            yield letter, box_at(index), cell_at(index, cell) if cells else None

    for found in _WORDS.finditer(_text_by_index(textpage)):
        space, word, (start, end) = found[1].strip("\0"), found[2], found.span(2)
        if "\n" in space or "\r" in space:
            line, last = line + space.count("\n"), None
        blank = " " if space else ""
        # The word in one piece if a cell holds its first and its last letter, else its letters; with box and cell.
        whole = cell_at(start, cell) if cells else None
        is_whole = whole is not None and (end - start == 1 or cell_at(end - 1, whole) is whole)
        for text, box, owner in ((word, whole, whole),) if whole is not None and is_whole else letters(word, start):
            apart = last is None or owner is not cell
            if last is not None and owner is None and not apart:
                # Words of a justified line may be spaced, but not by much more than a letter's height.
                widest = max(_SMALLEST_GAP, 1.2 * max(last.height, box.height))
                apart = max(box.x0 - last.x1, last.x0 - box.x1) > widest
            if apart:
                runs.append(TextRun(text, box, line, owner))
            else:
                runs[-1].text += blank + text
                if owner is None:
                    runs[-1].box = runs[-1].box.around(box)
            blank, last, cell = "", box, owner
        if word.endswith(_HYPHEN):
            line, last = line + 1, None
    return runs


def _text_by_index(textpage: Any) -> str:
    # The letter of each index, NUL where there is none. The text in one piece may lack some, such as hyphens.
    whole, count = textpage.get_text_range(), textpage.count_chars()
    if len(whole) == count:
        return whole
    letters, high = list[str](), 0
    for index in range(count):
        code = c.FPDFText_GetUnicode(textpage.raw, index)
        if high and 0xDC00 <= code < 0xE000:
            code = 0x10000 + ((high - 0xD800) << 10) + code - 0xDC00
        high = code if 0xD800 <= code < 0xDC00 else 0
        letters.append("\0" if 0xD800 <= code < 0xE000 else chr(code))
    return "".join(letters)
