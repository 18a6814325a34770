"""Show a picture in a terminal that can: in kitty's protocol or as sixels, never anything where it cannot."""

from __future__ import annotations

import base64
import os
import re
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL import Image


Graphics = Literal["kitty", "sixel"]

QUERY_SECONDS = 0.5
MAX_PIXELS = 40_000_000  # of a picture that is decoded
WIDEST, HIGHEST = 640, 400  # pixels shown
COLORS = 128
PIECE = 4096  # bytes of one of kitty's sequences
_KITTY_TERMS = ("xterm-kitty", "xterm-ghostty")
_KITTY_PROGRAMS = ("WezTerm", "ghostty")
# Terminals that may have sixels; each is asked, as most can be built without them.
_SIXEL_TERMS = ("foot", "mlterm", "contour", "xterm-sixel", "yaft")
_ATTRIBUTES = re.compile(rb"\x1b\[\?([\d;]+)c")


def protocol_of(environment: Mapping[str, str], ask: Callable[[], bytes]) -> Graphics | None:
    """How this terminal shows pictures. `ask` gives its primary device attributes, where they must be asked for."""
    kind = environment.get("TERM", "")
    if environment.get("TMUX") or environment.get("STY") or kind.startswith(("tmux", "screen")):
        return None  # these pass no pictures on
    if environment.get("KITTY_WINDOW_ID") or kind in _KITTY_TERMS or environment.get("TERM_PROGRAM") in _KITTY_PROGRAMS:
        return "kitty"
    if kind.startswith(_SIXEL_TERMS) or environment.get("XTERM_VERSION"):
        found = _ATTRIBUTES.search(ask())
        return "sixel" if found and b"4" in found[1].split(b";") else None
    return None


def attributes() -> bytes:
    """What the terminal answers to the question what it is; empty if it does not in time."""
    before = termios.tcgetattr(sys.stdin)
    received, until = b"", time.monotonic() + QUERY_SECONDS
    try:
        tty.setcbreak(sys.stdin, termios.TCSANOW)
        os.write(sys.stdout.fileno(), b"\x1b[c")
        while not _ATTRIBUTES.search(received):
            if not select.select([sys.stdin], [], [], max(until - time.monotonic(), 0))[0]:
                break
            received += os.read(sys.stdin.fileno(), 1024)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
    return received


def sequences(path: Path, protocol: Graphics) -> str:
    """What draws the picture at the cursor, with a line break; empty for a file that is none."""
    from PIL import Image  # the largest library here, for the few terminals that show pictures

    try:
        with Image.open(path) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                return ""
            opened.thumbnail((WIDEST, HIGHEST))
            picture = opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return ""
    drawn = _kitty(picture) if protocol == "kitty" else _sixel(picture)
    return f"{drawn}\n"


def _kitty(picture: Image.Image) -> str:
    encoded = BytesIO()
    picture.save(encoded, "PNG")
    data = base64.b64encode(encoded.getvalue()).decode()
    pieces = [data[place : place + PIECE] for place in range(0, len(data), PIECE)]
    last = len(pieces) - 1
    return "".join(
        f"\x1b_G{'a=T,f=100,q=2,' if number == 0 else ''}m={int(number < last)};{piece}\x1b\\"
        for number, piece in enumerate(pieces)
    )


def _sixel(picture: Image.Image) -> str:
    reduced = picture.quantize(COLORS)
    palette = reduced.getpalette() or []
    colors = "".join(
        f"#{number};2;{';'.join(str(round(part / 2.55)) for part in palette[3 * number : 3 * number + 3])}"
        for number in range(len(palette) // 3)
    )
    pixels, (width, height) = reduced.tobytes(), reduced.size
    bands = (_band(pixels[top * width : (top + 6) * width], width) for top in range(0, height, 6))
    return f'\x1bPq"1;1;{width};{height}{colors}{"-".join(bands)}\x1b\\'


def _band(pixels: bytes, width: int) -> str:
    # Six rows of pixels: for each colour, which of the six it has in each column.
    return "$".join(f"#{color}{''.join(_runs(pixels, width, color))}" for color in sorted(set(pixels)))


def _runs(pixels: bytes, width: int, color: int) -> Iterator[str]:
    columns = [
        sum(1 << row for row, pixel in enumerate(pixels[column::width]) if pixel == color) for column in range(width)
    ]
    start = 0
    for place in range(1, width + 1):
        if place == width or columns[place] != columns[start]:
            sign, length = chr(63 + columns[start]), place - start
            yield f"!{length}{sign}" if length > 3 else sign * length
            start = place
