"""Read the text of pages that are pictures with Tesseract, where it is installed."""

from __future__ import annotations

import shutil
import subprocess
import time
from contextlib import closing
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any

HOW_TO_GET_IT = "install Tesseract, the Debian package tesseract-ocr, to have them read"
MAX_PAGES = 20
MAX_SECONDS = 45.0
_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"
_DOTS_PER_INCH = 200
_MOST_PIXELS = 16_000_000
_MOST_LANGUAGES = 4


@dataclass(slots=True)
class Ocr:
    """Tesseract with a budget: `pages` to read in at most `seconds`, counted from the first."""

    pages: int = MAX_PAGES
    seconds: float = MAX_SECONDS
    command: str | None = field(default_factory=lambda: shutil.which("tesseract", path=_PATH))
    _until: float | None = None
    _languages: str | None = None

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
            return self._run(["-", "-", "-l", self._installed_languages()], _picture(page), left)
        except (subprocess.SubprocessError, OSError):
            return None

    def _installed_languages(self) -> str:
        if self._languages is None:
            listed = self._run(["--list-langs"], b"", 10).splitlines()[1:]
            names = sorted((name for name in listed if name != "osd"), key=lambda name: name != "eng")
            self._languages = "+".join(names[:_MOST_LANGUAGES]) or "eng"
        return self._languages

    def _run(self, arguments: list[str], given: bytes, seconds: float) -> str:
        result = subprocess.run(  # noqa: S603 - a fixed command, the picture comes through a pipe
            [str(self.command), *arguments], input=given, capture_output=True, timeout=seconds, check=True
        )
        return result.stdout.decode(errors="replace").replace("\f", "").strip()


def _picture(page: Any) -> bytes:
    width, height = page.get_size()
    scale = min(_DOTS_PER_INCH / 72, (_MOST_PIXELS / max(1.0, width * height)) ** 0.5)
    with closing(page.render(scale=scale, grayscale=True, may_draw_forms=False)) as bitmap:
        picture = BytesIO()
        bitmap.to_pil().save(picture, "PPM")
        return picture.getvalue()
