"""PDFs made by code, each with its expected text."""

import io
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.lib.utils import ImageReader
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.cidfonts import UnicodeCIDFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Flowable, Paragraph, SimpleDocTemplate, Table, TableStyle

CHINESE = "微波炉的清洁方法。"
JAPANESE = "電子レンジのお手入れ。"
KOREAN = "전자레인지 청소 방법"
HEBREW = "נקו את הצלחת במים חמים"
TITLE = "A title that stands over both of the columns and reaches from one side to the other"
LEFT = [f"Left line {number} tells of the kitchen in words" for number in range(12)]
RIGHT = [f"Right line {number} tells of the garden in words" for number in range(12)]

Draw = Callable[[Any], None]


def drawn(*pages: Draw, **options: Any) -> bytes:
    """A PDF of A4 pages, each drawn by one function on a reportlab canvas."""
    stream = io.BytesIO()
    canvas = Canvas(stream, pagesize=A4, invariant=1, **options)
    for draw in pages:
        draw(canvas)
        canvas.showPage()
    canvas.save()
    return stream.getvalue()


def lines(texts: Sequence[str], *, x: float = 50, top: float = 800) -> Draw:
    def draw(canvas: Any) -> None:
        canvas.setFont("Helvetica", 11)
        for number, text in enumerate(texts):
            canvas.drawString(x, top - 14 * number, text)

    return draw


def text_pdf(pages: int, lines_each: int = 50, **options: Any) -> bytes:
    """Pages of prose; page N begins with "Page N begins here."."""
    body = [
        f"Line {line} of a page that is filled with words from its one side to its other." for line in range(lines_each)
    ]
    return drawn(*(lines([f"Page {number} begins here.", *body]) for number in range(1, pages + 1)), **options)


def flowing_pdf(*flow: Flowable) -> bytes:
    stream = io.BytesIO()
    SimpleDocTemplate(stream, pagesize=A4, invariant=1).build(list(flow))
    return stream.getvalue()


def paragraph(text: str) -> Flowable:
    return Paragraph(text, getSampleStyleSheet()["Normal"])


def ruled(rows: Sequence[Sequence[Any]], *more: tuple[Any, ...]) -> Flowable:
    return Table([list(row) for row in rows], style=TableStyle([("GRID", (0, 0), (-1, -1), 0.5, colors.black), *more]))


def boxed(rows: Sequence[Sequence[str]], *, width: float = 90) -> Draw:
    """A table whose every cell is a rectangle of its own, as office programs draw them."""

    def draw(canvas: Any) -> None:
        for down, row in enumerate(rows):
            for across, text in enumerate(row):
                x, y = 50 + across * width, 700 - down * 18
                canvas.rect(x, y, width, 18)
                canvas.drawString(x + 4, y + 5, text)

    return draw


def columns(*, line_by_line: bool) -> Draw:
    """Two columns under a title, drawn one after the other or line by line across both."""

    def draw(canvas: Any) -> None:
        canvas.drawString(50, 800, TITLE)
        both = [(50, 770 - 14 * row, text) for row, text in enumerate(LEFT)]
        both += [(320, 770 - 14 * row, text) for row, text in enumerate(RIGHT)]
        for x, y, text in sorted(both, key=lambda place: -place[1]) if line_by_line else both:
            canvas.drawString(x, y, text)

    return draw


def sideways(canvas: Any) -> None:
    canvas.drawString(50, 700, "An upright sentence.")
    for angle, text in (
        (90, "A sentence going up."),
        (180, "A sentence upside down."),
        (270, "A sentence going down."),
    ):
        canvas.saveState()
        canvas.translate(300, 400)
        canvas.rotate(angle)
        canvas.drawString(30, 30, text)
        canvas.restoreState()


def turned(draw: Draw) -> Draw:
    """The same page as it is scanned or printed sideways: drawn lying down, to be shown turned clockwise."""

    def draw_turned(canvas: Any) -> None:
        canvas.setPageSize((A4[1], A4[1]))
        canvas.setPageRotation(90)
        canvas.transform(0, 1, -1, 0, A4[1], 0)
        draw(canvas)

    return draw_turned


def cjk(canvas: Any) -> None:
    fonts = {"STSong-Light": CHINESE, "HeiseiMin-W3": JAPANESE, "HYSMyeongJo-Medium": KOREAN}
    for row, (font, text) in enumerate(fonts.items()):
        pdfmetrics.registerFont(UnicodeCIDFont(font))
        canvas.setFont(font, 12)
        canvas.drawString(50, 700 - 30 * row, text)


def form(canvas: Any) -> None:
    canvas.drawString(50, 740, "Order form")
    fields = canvas.acroForm
    fields.textfield(name="full_name", tooltip="Your name", value="Ann Example", x=100, y=690, width=200, height=20)
    fields.textfield(name="remark", value="", x=100, y=660, width=200, height=20)
    fields.checkbox(name="newsletter", checked=True, x=100, y=630)
    fields.checkbox(name="express", checked=False, x=140, y=630)
    fields.choice(name="colour", value="red", options=["red", "green"], x=100, y=600, width=80, height=20)
    fields.radio(name="size", value="large", selected=True, x=100, y=570)
    fields.radio(name="size", value="small", selected=False, x=140, y=570)


def encrypted_pdf(text: str, password: str, strength: int = 128) -> bytes:
    """A PDF that needs the password; an empty one opens without."""
    return drawn(lines([text]), encrypt=StandardEncryption(password, ownerPassword="owner", strength=strength))


def scan(text: str) -> Draw:
    """A page that is nothing but a picture of the text."""
    from PIL import Image, ImageDraw, ImageFont

    def draw(canvas: Any) -> None:
        picture = Image.new("L", (1240, 1754), 255)
        ImageDraw.Draw(picture).text((100, 150), text, fill=0, font=ImageFont.load_default(44), spacing=20)
        canvas.drawImage(ImageReader(picture), 0, 0, *A4)

    return draw


def blank(canvas: Any) -> None:
    canvas.setFont("Helvetica", 11)


def plain_pdf(objects: Sequence[bytes]) -> bytes:
    """A PDF of these objects, numbered from 1, uncompressed, with a correct cross-reference table."""
    content, places = b"%PDF-1.7\n", list[int]()
    for number, body in enumerate(objects, 1):
        places.append(len(content))
        content += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    head = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    end = b"trailer\n<</Root 1 0 R/Size %d>>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, len(content))
    return content + head + table + end


def stream(data: bytes, entries: bytes = b"") -> bytes:
    return b"<<%s/Length %d>>\nstream\n%s\nendstream" % (entries, len(data), data)


def right_to_left_pdf(text: str = HEBREW) -> bytes:
    """One line of Hebrew as it is drawn: from left to right, so the last letter first."""
    letters = sorted(set(text))
    codes = {letter: code for code, letter in enumerate(letters, 33)}
    mapped = b"".join(b"<%02x> <%04x>\n" % (code, ord(letter)) for letter, code in codes.items())
    cmap = (
        b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapName /H def /CMapType 2 def\n"
        b"1 begincodespacerange <00> <ff> endcodespacerange\n%d beginbfchar\n%sendbfchar\nendcmap end end"
    ) % (len(codes), mapped)
    drawn_letters = b"".join(b"%02x" % codes[letter] for letter in reversed(text))
    return plain_pdf([
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 400 200]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
        stream(b"BT /F 14 Tf 50 100 Td <%s> Tj ET" % drawn_letters),
        b"<</Type/Font/Subtype/Type1/BaseFont/Courier/FirstChar 33/LastChar %d/Widths[%s]/ToUnicode 6 0 R>>"
        % (32 + len(codes), b"600 " * len(codes)),
        stream(cmap),
    ])  # fmt: skip


def many_pages_pdf(pages: int, content: bytes = b"BT /F 12 Tf 50 100 Td (The same words) Tj ET") -> bytes:
    """Pages that all show the same content."""
    shown = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 3 0 R/Resources<</Font<</F 4 0 R>>>>>>"
    kids = b" ".join(b"%d 0 R" % number for number in range(5, 5 + pages))
    return plain_pdf([
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%s]/Count %d>>" % (kids, pages),
        stream(content),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
        *[shown] * pages,
    ])  # fmt: skip


def bomb_pdf(words: int) -> bytes:
    """Less than a kilobyte that is one page of so many words: its content was compressed twice."""
    content = b"BT /F 12 Tf 50 100 Td " + b"(xxxxxxxx) Tj " * words + b"ET"
    return plain_pdf([
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 500 500]/Contents 4 0 R/Resources<</Font<</F 5 0 R>>>>>>",
        stream(zlib.compress(zlib.compress(content)), b"/Filter[/FlateDecode/FlateDecode]"),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ])  # fmt: skip


def grid(rows: int, across: int, size: float = 10) -> bytes:
    """Content of a page: the lines of a table, with a letter in every cell."""
    width, height = across * size, rows * size
    down = b"".join(b"%g 0 m %g %g l S\n" % (x * size, x * size, height) for x in range(across + 1))
    over = b"".join(b"0 %g m %g %g l S\n" % (y * size, width, y * size) for y in range(rows + 1))
    letters = b"".join(
        b"BT /F 6 Tf %g %g Td (x) Tj ET\n" % (x * size + 3, y * size + 3) for x in range(across) for y in range(rows)
    )
    return down + over + letters


def remapped_pdf(text: str, to: int) -> bytes:
    """One line whose letters the file gives the code points from `to` on."""
    return right_to_left_pdf("".join(chr(to + number) for number in range(len(text))))


def curve(canvas: Any, x: float, y: float) -> None:
    canvas.bezier(x, y, x + 4, y + 9, x + 6, y - 3, x + 9, y + 5)


def packed_pdf(text: str) -> bytes:
    """One page whose objects are packed and compressed, as newer programs write them, truncated."""
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 5 0 R/Resources<</Font<</F 4 0 R>>>>>>",
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    places = [sum(len(body) + 1 for body in objects[:number]) for number in range(len(objects))]
    header = b" ".join(b"%d %d" % pair for pair in enumerate(places, 1)) + b" "
    packed = zlib.compress(header + b"\n".join(objects) + b"\n")
    shown = stream(b"BT /F 12 Tf 50 700 Td (%s) Tj ET" % text.encode("latin-1"))
    entries = b"/Type/ObjStm/N %d/First %d/Filter/FlateDecode" % (len(objects), len(header))
    return b"%%PDF-1.7\n5 0 obj\n%s\nendobj\n6 0 obj\n%s\nendobj\n" % (shown, stream(packed, entries))
