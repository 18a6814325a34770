"""The workspace of a session: texts as the editor has them."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from task.errors import ToolError
from task.tools.workspace.root import Workspace

Ask = Callable[..., dict[str, Any] | None]


class EditorWorkspace(Workspace):
    """A workspace whose saved texts come from the editor, where it `reads` them, and are written by it, where it
    `writes`.

    Paths are checked as in any other. `shown` is the folder as the editor calls it, perhaps a link. `ask` sends it a
    request, from a thread; None: it was not done. `written` are the text before and after, by the files, until the
    editor is shown them; `asked` the texts that open questions show.
    """

    def __init__(self, path: Path, *, shown: Path, ask: Ask, reads: bool, writes: bool, **given: Any) -> None:
        super().__init__(path, **given)
        self.shown, self._ask, self._reads, self._writes = shown, ask, reads, writes
        self.written, self.asked = dict[str, tuple[str | None, str]](), dict[str, str | None]()

    def read(self, path: str) -> bytes:
        content = super().read(path)
        with suppress(UnicodeDecodeError):
            content.decode()
            place = str(self.shown / self.normalised(path))
            text = (self._ask("fs/read_text_file", path=place) or {}).get("content") if self._reads else None
            content = text.encode(errors="replace") if isinstance(text, str) else content
        if len(content) > self.limits.read_bytes:
            raise ToolError(f"too large ({len(content):,} bytes, at most {self.limits.read_bytes:,})")
        return content

    def before(self, path: str) -> str | None:
        """The text that is there now; None: there is none."""
        with suppress(OSError, ToolError):
            return self.read(path).decode(errors="replace")
        return None

    def _put(self, relative: str, content: bytes, folder: int, name: str, old: os.stat_result | None) -> None:
        before, place, text = self.before(relative), str(self.shown / relative), content.decode()
        if self.asked.pop(place, before) != before:
            raise ToolError("it has changed since the user was asked; read it again")
        if not self._writes:
            super()._put(relative, content, folder, name, old)
        elif self._ask("fs/write_text_file", path=place, content=text) is None:
            raise ToolError("the editor did not write it; read the file before you try again")
        self.written[place] = (before, text)
