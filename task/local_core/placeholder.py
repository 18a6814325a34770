"""Draw the picture that stands where no image model is connected; it says so."""

from __future__ import annotations

import io
import re
import textwrap
from typing import Any

NOTICE = "placeholder - no image model is connected"
SIDE = 1024
_SMALLEST, _LARGEST = 128, 2048
_SIZE = re.compile(r"(\d{2,4})x(\d{2,4})")
_PROMPT_CHARS = 600
_BACKGROUND, _FRAME, _INK, _FAINT = "#eef1f5", "#9aa5b1", "#1f2933", "#52606d"


def drawn(prompt: str, size: str | None = None) -> bytes:
    """A PNG with the notice and the prompt's words; `size` is `{width}x{height}`, else a square of 1024 pixels."""
    from PIL import Image, ImageDraw

    width, height = _dimensions(size)
    image = Image.new("RGB", (width, height), _BACKGROUND)
    pen = ImageDraw.Draw(image)
    edge = min(width, height) // 32
    pen.rectangle((edge, edge, width - edge, height - edge), outline=_FRAME, width=max(1, edge // 6))
    _write(pen, NOTICE, (width / 2, height * 0.12), min(width // 28, height // 16), _FAINT, width)
    _write(pen, prompt[:_PROMPT_CHARS], (width / 2, height / 2), min(width // 20, height // 18), _INK, width)
    content = io.BytesIO()
    image.save(content, "PNG")
    return content.getvalue()


def _dimensions(size: str | None) -> tuple[int, int]:
    told = _SIZE.fullmatch(size or "")
    if told is None:
        return SIDE, SIDE
    width, height = (min(max(int(side), _SMALLEST), _LARGEST) for side in told.groups())
    return width, height


def _write(pen: Any, text: str, middle: tuple[float, float], points: int, colour: str, width: int) -> None:
    letters = max(8, int(width * 1.6 / max(points, 8)))
    lines = "\n".join(textwrap.wrap(text, letters))
    pen.multiline_text(
        middle, lines, fill=colour, font=_font(max(points, 8)), anchor="mm", align="center", spacing=points // 3
    )


def _font(points: int) -> Any:
    from PIL import ImageFont

    try:
        return ImageFont.truetype("DejaVuSans.ttf", points)  # the font inside Pillow knows Latin letters only
    except OSError:
        return ImageFont.load_default(points)
