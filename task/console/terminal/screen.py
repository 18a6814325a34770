"""The lower lines of the screen: what still changes of an answer, the input line, a line of status; the rest above."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Size
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, merge_key_bindings
from prompt_toolkit.layout import Float, FloatContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from rich.console import RenderableType

from task.console.terminal.input_line import MENU_LINES, InputLine
from task.console.terminal.rendering import MOST_COLUMNS, Renderer, one_line

RESIZE_SECONDS = 0.2
KEPT_ROWS = 8  # of the screen, which an unfinished answer leaves to the rest
DEPTHS = {None: ColorDepth.DEPTH_1_BIT, "standard": ColorDepth.DEPTH_4_BIT, "256": ColorDepth.DEPTH_8_BIT}
STYLE = Style.from_dict({"status": "ansibrightblack", "prompt": "bold ansicyan", "question": "bold ansiyellow"})


class Screen:
    """Draws with one write for each picture, so that a terminal never shows half of one."""

    def __init__(self, renderer: Renderer, line: InputLine, status: Callable[[], str], keys: KeyBindings) -> None:
        self._renderer, self._line, self._status = renderer, line, status
        self._live: StyleAndTextTuples = []
        self._live_lines = 0
        # No questions about the cursor: a terminal that answers late would type the answer.
        self._output = _Output(sys.stdout, _size, enable_cpr=False)
        self.app = self._application(keys)

    def ansi(self, part: RenderableType) -> str:
        return self._renderer.ansi(part, min(_size().columns, MOST_COLUMNS))

    def draw(self, above: str, live: Sequence[RenderableType]) -> None:
        """Print `above` once, and show the parts of `live` until the next picture."""
        lines = "".join(map(self.ansi, live)).splitlines()[-max(_size().rows - KEPT_ROWS, 3) :]
        self._live, self._live_lines = to_formatted_text(ANSI("\n".join(lines))), len(lines)
        if not above:
            self.app.invalidate()
            return
        self._output.held = True
        try:
            self.app.renderer.erase(leave_alternate_screen=False)
            self._output.write_raw(above.replace("\n", "\r\n"))
            self.app.renderer.render(self.app, self.app.layout)
        finally:
            self._output.held = False
            self._output.flush()

    def _application(self, keys: KeyBindings) -> Application[None]:
        live = Window(
            FormattedTextControl(lambda: self._live), height=lambda: Dimension.exact(self._live_lines),
            dont_extend_height=True,
        )  # fmt: skip
        status = Window(FormattedTextControl(self._status_line), height=1, style="class:status")
        body = HSplit([live, self._line.window(lambda: _size().rows), self._line.search, status])
        menu = Float(CompletionsMenu(max_height=MENU_LINES, scroll_offset=1), xcursor=True, ycursor=True)
        return Application(
            Layout(FloatContainer(body, [menu]), focused_element=self._line.control),
            key_bindings=merge_key_bindings([self._line.keys(), keys]),
            style=STYLE if self._renderer.colors else None, color_depth=DEPTHS[self._renderer.colors],
            include_default_pygments_style=False, erase_when_done=True, terminal_size_polling_interval=RESIZE_SECONDS,
            input=create_input(), output=self._output, max_render_postpone_time=0.01,
        )  # fmt: skip

    def _status_line(self) -> str:
        return one_line(self._status())[: max(_size().columns - 1, 0)]


class _Output(Vt100_Output):
    held = False

    def flush(self) -> None:
        if not self.held:
            super().flush()


def _size() -> Size:
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns, rows = 0, 0
    return Size(rows=rows or 24, columns=columns or 80)
