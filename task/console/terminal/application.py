"""The terminal in a thread of its own: keys are read and answers drawn whatever the rest of the program does."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from threading import Event as Signal
from threading import Lock, Thread, current_thread, main_thread
from typing import TYPE_CHECKING

from prompt_toolkit.application import Application
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent, merge_key_bindings
from prompt_toolkit.layout import Float, FloatContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from rich.console import RenderableType
from rich.text import Text

from task.console.terminal.answer import RunView
from task.console.terminal.input_line import MENU_LINES, Draft, InputLine
from task.console.terminal.rendering import MOST_COLUMNS, Colors, ansi, folded, one_line
from task.store.records import Event

if TYPE_CHECKING:
    from task.console.ui_manager import UserInterfaceManager

FRAME_SECONDS = 0.05  # between two pictures of an answer
WORK_SECONDS = 0.004  # of one turn of the loop that may go into an answer before keys are read again
IDLE_SECONDS = 0.25  # between two pictures of the clock in the live area
RESIZE_SECONDS = 0.2
KEPT_ROWS = 8  # of the screen, which an unfinished answer leaves to the rest
LEAVE = "Ctrl-C again, or Ctrl-D, ends the program."
DEPTHS = {None: ColorDepth.DEPTH_1_BIT, "standard": ColorDepth.DEPTH_4_BIT, "256": ColorDepth.DEPTH_8_BIT}
STYLE = Style.from_dict({"status": "ansibrightblack", "prompt": "bold ansicyan", "question": "bold ansiyellow"})
_Item = RunView | Event | RenderableType | Signal
_EndOfInput = type[EOFError] | type[KeyboardInterrupt]


@dataclass(slots=True)
class _Question:
    prompt: Callable[[], str]
    draft: Draft = field(default_factory=lambda: (Document(), {}))
    replies: Queue[str] = field(default_factory=Queue[str])


class Terminal:
    """An input line that stays alive in a thread of its own, whatever the rest of the program does.

    What is printed goes above it. What is typed while an answer is shown, and is not a command, is kept for `read`.
    `ui` has what the rest of the console has filled in.
    """

    def __init__(self, colors: Colors, prompt: str, ui: UserInterfaceManager) -> None:
        self._prompt, self._ui = prompt, ui
        self._entered: Queue[str | _EndOfInput] = Queue()
        self._inbox, self._above = deque[_Item](), list[str]()  # `_above` is finished, but not on the screen yet
        self._leaving = False  # Ctrl-C was pressed at the empty prompt
        self._answer: RunView | None = None
        self._question: _Question | None = None
        self._answering, self._reading, self._reader = False, False, Lock()
        self._scheduled, self._drawn_at = False, 0.0

        def prompted() -> tuple[str, str]:
            return ("class:question", self._question.prompt()) if self._question else ("class:prompt", self._prompt)

        def typed(_: object) -> None:
            self._leaving = False

        self._line = InputLine(self._enter, prompted, ui.complete, lambda: self._question is None, ui.history_file)
        self._line.buffer.on_text_changed += typed
        keys = KeyBindings()
        keys.add("c-c")(self._interrupt)
        keys.add("c-d")(self._end_or_delete)
        keys.add("c-z")(lambda event: event.app.suspend_to_background())
        self._screen = Screen(colors, self._line, lambda: LEAVE if self._leaving else ui.status(), keys)
        self._app = self._screen.app
        self._loop = asyncio.new_event_loop()
        if current_thread() is main_thread():  # which may have inherited to ignore it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._running = Signal()
        self._thread = Thread(target=self._run, name="terminal", daemon=True)
        self._thread.start()
        self._running.wait()
        gc.freeze()  # a pass over everything that is loaded would hold up a key for 40 ms

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._app.is_done

    def read(self) -> str:
        """The next input.

        Raises:
            EOFError: Ctrl-D, or the terminal is gone.
            KeyboardInterrupt: Ctrl-C twice at the empty prompt.
        """
        entered: str | _EndOfInput | None = None
        while entered is None:
            with suppress(KeyboardInterrupt):  # of a Ctrl-C that meant what was under way before
                with self._reader:
                    self._reading = True
                try:
                    entered = self._entered.get()
                finally:
                    with self._reader:
                        self._reading = False
        if isinstance(entered, str):
            return entered
        raise entered

    def post(self, item: _Item) -> None:
        """Show this above the input, after what came before it: a part, or an event of the answer that has begun."""
        self._inbox.append(item)
        if not self._scheduled:
            self._scheduled = True
            self._call(self._schedule)

    def begin(self, answer: RunView) -> None:
        self._answering = True
        self.post(answer)

    def end(self) -> None:
        """Returns when everything is on the screen."""
        drawn = Signal()
        self._answering = False
        self.post(drawn)
        while self.alive and not drawn.wait(0.5):
            pass

    def ask(self, prompt: Callable[[], str], default: str, wait: Callable[[], bool]) -> str | None:
        """A line typed as an answer, `default` being there to be changed; None once `wait` is false.

        What was typed before comes back when the question is over.
        """
        question = _Question(prompt)

        def opened() -> None:
            question.draft = self._line.exchange((Document(default), {}))
            self._question = question
            self._frame()

        def closed() -> None:
            if self._question is not None:
                self._line.exchange(self._question.draft)
                self._question = None
                self._frame()

        self._call(opened)
        try:
            while self.alive and wait():
                try:
                    return question.replies.get(timeout=0.25)
                except Empty:
                    self._app.invalidate()  # the prompt may count down
            return None
        finally:
            self._call(closed)

    def close(self) -> None:
        """Give the terminal back, with what was printed on it."""
        if self.alive:
            self.end()
            self._call(self._app.exit)
        self._thread.join(timeout=5)

    def _call(self, action: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(action)

    # From here on: in the terminal's thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(
                self._app.run_async(pre_run=self._running.set, handle_sigint=False, set_exception_handler=False)
            )
        except (EOFError, OSError):
            pass  # the terminal is gone
        finally:
            self._running.set()
            self._entered.put(EOFError)

    def _schedule(self) -> None:
        # One turn of the loop later: a key that is read in this one is shown before.
        seconds = max(self._drawn_at + FRAME_SECONDS - time.monotonic(), 0)
        self._loop.call_later(seconds, self._loop.call_soon, self._frame)

    def _frame(self) -> None:
        """Show what has come in; the rest follows after keys were read and shown, if it is much."""
        self._scheduled, drawn = False, list[Signal]()
        until = time.monotonic() + WORK_SECONDS
        try:
            while self._inbox and time.monotonic() < until:
                item = self._inbox.popleft()
                if isinstance(item, RunView):
                    self._answer = item
                elif isinstance(item, Signal):
                    drawn.append(item)
                    self._answer = None
                elif not isinstance(item, Event):
                    self._above.append(self._screen.ansi(item))
                elif self._answer is not None:
                    self._answer.show(item)
                    self._above += map(self._screen.ansi, self._answer.finished())
            left = bool(self._inbox)  # what comes from now on waits for the next picture
            if drawn or not left or until > self._drawn_at + 4 * FRAME_SECONDS:
                above, self._above = "".join(self._above), []
                self._screen.draw(above, self._live())
                self._drawn_at = time.monotonic()
        finally:  # the program waits for them
            for signal_ in drawn:
                signal_.set()
        if left and not self._scheduled:
            self._scheduled = True
            self._schedule()
        elif not left and self._answer is not None:
            self._loop.call_later(IDLE_SECONDS, self._frame_if_idle)

    def _frame_if_idle(self) -> None:
        if not self._scheduled and self._answer is not None and time.monotonic() >= self._drawn_at + IDLE_SECONDS:
            self._frame()

    def _live(self) -> list[RenderableType]:
        if self._answer is None or self._question is not None:
            return []
        parts = self._answer.unfinished()
        if self._answer.activity:
            parts += [Text(), Text(f"{self._answer.activity} · Ctrl-C stops", "dim")]
        for text in tuple(self._entered.queue):
            if isinstance(text, str):
                parts.append(Text(one_line(f"next: {folded(text)}"), "dim", no_wrap=True, overflow="ellipsis"))
        return parts

    def _enter(self, text: str) -> None:
        if self._question is not None:
            self._question.replies.put(text)
            return
        self._line.remember(text)
        # After the last event of a run the turn is just ending.
        in_turn = self._answering and (self._answer is None or bool(self._answer.activity))
        if not (text.startswith("/") and in_turn):
            self._entered.put(text)
        elif self._ui.during_turn is not None:
            Thread(target=self._ui.during_turn, args=(text,), daemon=True).start()

    def _interrupt(self, event: KeyPressEvent) -> None:
        with self._reader:
            if not self._reading:
                signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
                return
        if self._line.buffer.text:
            self._line.buffer.reset()
        elif self._leaving:
            self._entered.put(KeyboardInterrupt)
        else:
            self._leaving = True

    def _end_or_delete(self, event: KeyPressEvent) -> None:
        if self._line.buffer.text:
            self._line.buffer.delete()
        else:
            self._entered.put(EOFError)


class Screen:
    """The lower lines: what still changes of an answer, the input line, a line of status; the rest is above.

    Each picture is drawn with one write, so that a terminal never shows half of one.
    """

    def __init__(self, colors: Colors, line: InputLine, status: Callable[[], str], keys: KeyBindings) -> None:
        self._colors: Colors = colors
        self._live: StyleAndTextTuples = []
        self._live_lines = 0
        # No questions about the cursor: a terminal that answers late would type the answer.
        self._output = _Output(sys.stdout, _size, enable_cpr=False)

        def status_line() -> str:
            return one_line(status())[: max(_size().columns - 1, 0)]

        shown = FormattedTextControl(lambda: self._live)
        live = Window(shown, height=lambda: Dimension.exact(self._live_lines), dont_extend_height=True)
        lowest = Window(FormattedTextControl(status_line), height=1, style="class:status")
        body = HSplit([live, line.window(lambda: _size().rows), line.search, lowest])
        menu = Float(CompletionsMenu(max_height=MENU_LINES, scroll_offset=1), xcursor=True, ycursor=True)
        self.app: Application[None] = Application(
            Layout(FloatContainer(body, [menu]), focused_element=line.control),
            key_bindings=merge_key_bindings([line.keys(), keys]),
            style=STYLE if colors else None,
            color_depth=DEPTHS[colors],
            include_default_pygments_style=False,
            erase_when_done=True,
            terminal_size_polling_interval=RESIZE_SECONDS,
            input=create_input(),
            output=self._output,
            max_render_postpone_time=None,  # or a key would wait for the answer
        )

    def ansi(self, part: RenderableType) -> str:
        return ansi(part, min(_size().columns, MOST_COLUMNS), self._colors)

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
