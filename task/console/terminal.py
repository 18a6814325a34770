"""The lower lines of the terminal: what still changes of an answer, the input line, and a line of status."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import Empty, Queue
from threading import Event as Signal
from threading import Lock, Thread, current_thread, main_thread
from typing import Protocol

from prompt_toolkit.application import Application
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, ThreadedCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import create_input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import Float, FloatContainer, HSplit, Layout, Window
from prompt_toolkit.layout.controls import BufferControl, FormattedTextControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.layout.menus import CompletionsMenu
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.styles import Style
from prompt_toolkit.widgets import SearchToolbar
from rich.console import RenderableType
from rich.text import Text

from task.console.answer import Answer
from task.console.attaching import last_word
from task.console.images import Graphics, attributes, protocol_of, sequences
from task.console.rendering import FOLDED_CHARS, FOLDED_LINES, MOST_COLUMNS, Renderer, folded, one_line, safe
from task.store.records import Event

FRAME_SECONDS = 0.05  # between two pictures of an answer
WORK_SECONDS = 0.004  # of one turn of the loop that may go into an answer before keys are read again
IDLE_SECONDS = 0.25  # between two pictures of the clock in the live area
RESIZE_SECONDS = 0.2
LOST_SECONDS = 1.0  # until it is noticed that the terminal is gone, where no signal says so
KEPT_CHARS = 10_000  # of an input in the history of inputs
MENU_LINES = 8
LEAVE = "Ctrl-C again, or Ctrl-D, ends the program."
DEPTHS = {None: ColorDepth.DEPTH_1_BIT, "standard": ColorDepth.DEPTH_4_BIT, "256": ColorDepth.DEPTH_8_BIT}
STYLE = Style.from_dict({"status": "ansibrightblack", "prompt": "bold ansicyan", "question": "bold ansiyellow"})
_PASTED = re.compile(r"\[pasted text #(\d+): [^\]]*\]")
_EndOfInput = type[EOFError] | type[KeyboardInterrupt]


@dataclass(slots=True)
class _Question:
    prompt: Callable[[], str]
    draft: Document
    replies: Queue[str] = field(default_factory=Queue[str])


class Hooks(Protocol):
    """What the rest of the console fills in, now or later; see `UserInterfaceManager`."""

    complete: Callable[[str], list[str]]
    status: Callable[[], str]
    during_turn: Callable[[str], object] | None
    history_file: Path | None


class _Output(Vt100_Output):
    """Holds back what is written while a picture is put together: the terminal never shows half of one."""

    held = False

    def flush(self) -> None:
        if not self.held:
            super().flush()


class _WordCompleter(Completer):
    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        for candidate in self._hooks.complete(before):
            yield Completion(candidate, -len(last_word(before)), display=one_line(candidate))


class Terminal:
    """An input line that stays alive in a thread of its own, whatever the rest of the program does.

    What is printed goes above it. What is typed while an answer is shown, and is no command, is kept for `read`.
    """

    def __init__(self, renderer: Renderer, prompt: str, hooks: Hooks) -> None:
        self._renderer, self._prompt, self._hooks = renderer, prompt, hooks
        self._entered: Queue[str | _EndOfInput] = Queue()
        self._inbox: deque[Event | RenderableType | Signal | str] = deque()
        self._leaving = False  # Ctrl-C was pressed at the empty prompt
        self._completing = False  # Tab was pressed
        self._pastes: dict[int, str] = {}
        self._paste_numbers = count(1)
        self._answer: Answer | None = None
        self._question: _Question | None = None
        self._live: StyleAndTextTuples = []
        self._live_lines = 0
        self._turn = Lock()  # Ctrl-C may interrupt the main thread while it is held only
        self._scheduled, self._drawn_at = False, 0.0
        self._buffer = Buffer(
            multiline=True, completer=ThreadedCompleter(_WordCompleter(hooks)), history=_history(hooks.history_file),
            complete_while_typing=Condition(self._completes_while_typing), on_text_changed=self._typed,
            on_completions_changed=self._completed,
        )  # fmt: skip
        # No questions about the cursor: a terminal that answers late would type the answer.
        self._output = _Output(sys.stdout, _size, enable_cpr=False)
        self._pictures: Graphics | None = protocol_of(os.environ, attributes)
        self._app = self._application()
        self._loop = asyncio.new_event_loop()
        if current_thread() is main_thread():  # which may have inherited to ignore it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self._running = Signal()
        self._thread = Thread(target=self._run, name="terminal", daemon=True)
        self._thread.start()
        self._running.wait()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._app.is_done

    def read(self) -> str:
        """The next input.

        Raises:
            EOFError: Ctrl-D, or the terminal is gone.
            KeyboardInterrupt: Ctrl-C twice at the empty prompt.
        """
        entered = self._entered.get()
        if isinstance(entered, str):
            return entered
        raise entered

    def print(self, part: RenderableType) -> None:
        """Show this above the input, after what came before it."""
        self._post(part)

    def picture(self, path: Path) -> None:
        """Show the picture, where the terminal can."""
        if self._pictures is not None and (drawn := sequences(path, self._pictures)):
            self._post(drawn)

    def begin(self, answer: Answer) -> None:
        self._call(lambda: setattr(self, "_answer", answer))

    def show(self, event: Event) -> None:
        self._post(event)

    def end(self) -> None:
        """Returns when everything is on the screen."""
        drawn = Signal()
        try:
            with self._turn:  # a Ctrl-C that still means this answer interrupts here
                pass
        finally:
            self._post(drawn)
        while self.alive and not drawn.wait(0.5):
            pass

    def ask(self, prompt: Callable[[], str], default: str, wait: Callable[[], bool]) -> str | None:
        """A line typed as an answer, `default` being there to be changed; None once `wait` is false.

        What was typed before comes back when the question is over.
        """
        question = _Question(prompt, Document())
        self._call(lambda: self._open_question(question, default))
        try:
            while self.alive and wait():
                try:
                    return question.replies.get(timeout=0.25)
                except Empty:
                    self._app.invalidate()  # the prompt may count down
            return None
        finally:
            self._call(self._close_question)

    def close(self) -> None:
        """Give the terminal back, with what was printed on it."""
        if self.alive:
            self.end()
            self._call(self._app.exit)
        self._thread.join(timeout=5)

    def columns(self) -> int:
        return min(self._output.get_size().columns, MOST_COLUMNS)

    # From here on: in the terminal's thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(
                self._app.run_async(pre_run=self._started, handle_sigint=False, set_exception_handler=False)
            )
        except (EOFError, OSError):
            pass  # the terminal is gone
        finally:
            self._running.set()
            self._entered.put(EOFError)

    def _started(self) -> None:
        self._running.set()
        self._loop.call_later(LOST_SECONDS, self._leave_if_lost)

    def _leave_if_lost(self) -> None:
        try:
            termios.tcgetattr(sys.stdin)
        except termios.error:
            self._app.exit(exception=EOFError())
        else:
            self._loop.call_later(LOST_SECONDS, self._leave_if_lost)

    def _call(self, action: Callable[[], None]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(action)

    def _post(self, item: Event | RenderableType | Signal | str) -> None:
        self._inbox.append(item)
        if not self._scheduled:
            self._scheduled = True
            self._call(self._schedule)

    def _schedule(self) -> None:
        self._loop.call_later(max(self._drawn_at + FRAME_SECONDS - time.monotonic(), 0), self._frame)

    def _frame(self) -> None:
        """Show what has come in; the rest follows after keys were read, if it is much."""
        self._scheduled = False
        above: list[str] = []
        drawn: list[Signal] = []
        try:
            self._take_in(above, drawn)
            self._draw("".join(above))
        finally:  # the program waits for them
            for signal_ in drawn:
                signal_.set()
            self._drawn_at = time.monotonic() if not self._inbox else 0.0
            if self._inbox:
                self._scheduled = True
                self._schedule()
            elif self._answer is not None:
                self._loop.call_later(IDLE_SECONDS, self._tick)

    def _take_in(self, above: list[str], drawn: list[Signal]) -> None:
        until = time.monotonic() + WORK_SECONDS
        while self._inbox and time.monotonic() < until:
            item = self._inbox.popleft()
            if isinstance(item, Signal):
                drawn.append(item)
                self._answer = None
            elif isinstance(item, str):
                above.append(item)
            elif isinstance(item, Event):
                above += map(self._ansi, self._shown(item))
            else:
                above.append(self._ansi(item))

    def _tick(self) -> None:
        if not self._scheduled and self._answer is not None and time.monotonic() >= self._drawn_at + IDLE_SECONDS:
            self._frame()

    def _shown(self, event: Event) -> list[RenderableType]:
        if self._answer is None:
            return []
        self._answer.show(event)
        return self._answer.finished()

    def _ansi(self, part: RenderableType) -> str:
        return self._renderer.ansi(part, self.columns())

    def _draw(self, above: str) -> None:
        self._compose_live()
        if not self._app.is_running:
            self._output.write_raw(above.replace("\n", "\r\n"))
            self._output.flush()
            return
        if not above:
            self._app.invalidate()
            return
        self._output.held = True
        try:
            self._app.renderer.erase(leave_alternate_screen=False)
            self._output.write_raw(above.replace("\n", "\r\n"))
            self._app.renderer.render(self._app, self._app.layout)
        finally:
            self._output.held = False
            self._output.flush()

    def _compose_live(self) -> None:
        parts: list[RenderableType] = []
        if self._answer is not None and self._question is None:
            parts += self._answer.unfinished()
            if self._answer.activity:
                parts += [Text(), Text(f"{self._answer.activity} · Ctrl-C stops", "dim")]
            parts += [_line(f"next: {folded(text)}") for text in self._entered_texts()]
        most = max(self._output.get_size().rows - 8, 3)
        lines = "".join(map(self._ansi, parts)).splitlines()[-most:]
        self._live_lines = len(lines)
        self._live = to_formatted_text(ANSI("\n".join(lines)))

    def _application(self) -> Application[None]:
        search = SearchToolbar()
        control = BufferControl(self._buffer, search_buffer_control=search.control)
        live = Window(
            FormattedTextControl(lambda: self._live), height=lambda: Dimension.exact(self._live_lines),
            dont_extend_height=True,
        )  # fmt: skip
        entry = Window(
            control, height=self._entry_height, dont_extend_height=True, wrap_lines=True, get_line_prefix=self._prefix
        )
        status = Window(FormattedTextControl(self._status_line), height=1, style="class:status")
        body = HSplit([live, entry, search, status])
        menu = Float(CompletionsMenu(max_height=MENU_LINES, scroll_offset=1), xcursor=True, ycursor=True)
        return Application(
            Layout(FloatContainer(body, [menu]), focused_element=control), key_bindings=self._keys(),
            style=STYLE if self._renderer.colors else None, color_depth=DEPTHS[self._renderer.colors],
            include_default_pygments_style=False, erase_when_done=True, terminal_size_polling_interval=RESIZE_SECONDS,
            input=create_input(), output=self._output, max_render_postpone_time=0.01,
        )  # fmt: skip

    def _entry_height(self) -> Dimension:
        least = MENU_LINES + 1 if self._buffer.complete_state else 1
        return Dimension(min=least, max=max(self._output.get_size().rows // 2, least))

    def _prefix(self, line: int, wraps: int) -> StyleAndTextTuples:
        prompt = self._question.prompt() if self._question else self._prompt
        style = "class:question" if self._question else "class:prompt"
        return [(style, safe(prompt))] if line == 0 and wraps == 0 else [("", "  ")]

    def _status_line(self) -> str:
        if self._leaving:
            return LEAVE
        return one_line(self._hooks.status())[: max(self._output.get_size().columns - 1, 0)]

    def _completes_while_typing(self) -> bool:
        text = self._buffer.document.text_before_cursor
        return self._question is None and (text.startswith("/") or last_word(text).startswith("@"))

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        keys.add("enter")(self._enter)
        keys.add("escape", "enter")(lambda event: self._buffer.insert_text("\n"))
        keys.add("tab")(self._complete)
        keys.add("c-c")(self._interrupt)
        keys.add("c-d")(self._end_or_delete)
        keys.add("c-z")(lambda event: event.app.suspend_to_background())
        keys.add(Keys.BracketedPaste)(self._paste)
        return keys

    def _typed(self, buffer: Buffer) -> None:
        self._leaving = self._completing = False

    def _complete(self, event: KeyPressEvent) -> None:
        if self._buffer.complete_state:
            self._buffer.complete_next()
        else:
            self._completing = True
            self._buffer.start_completion()

    def _completed(self, buffer: Buffer) -> None:
        # The first candidate of those that come: a lookup that was under way may answer for the one that Tab asks for.
        if self._completing and buffer.complete_state and buffer.complete_state.completions:
            self._completing = False
            buffer.complete_next()

    def _enter(self, event: KeyPressEvent) -> None:
        menu = self._buffer.complete_state
        if menu and menu.current_completion and len(menu.completions) > 1:
            self._buffer.complete_state = None
            return
        text = self._buffer.text
        if self._question is not None:
            self._question.replies.put(self._pasted_out(text))
            self._buffer.reset()
        elif self._buffer.document.text_before_cursor.endswith("\\") and not self._buffer.document.text_after_cursor:
            self._buffer.delete_before_cursor()
            self._buffer.insert_text("\n")
        else:
            self._remember(self._pasted_out(text))
            self._buffer.reset()
            self._accept(text)

    def _entered_texts(self) -> list[str]:
        return [text for text in tuple(self._entered.queue) if isinstance(text, str)]

    def _accept(self, shown: str) -> None:
        text = self._pasted_out(shown)
        if self._answer is not None and self._answer.activity and text.startswith("/"):  # else the turn is just ending
            if self._hooks.during_turn is not None:
                Thread(target=self._hooks.during_turn, args=(text,), daemon=True).start()
            return
        self._entered.put(text)

    def _remember(self, text: str) -> None:
        if text.strip() and len(text) <= KEPT_CHARS:
            self._buffer.history.append_string(text)

    def _interrupt(self, event: KeyPressEvent) -> None:
        with self._turn:
            if self._answer is not None or self._question is not None:
                signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)
                return
        if self._buffer.text:
            self._buffer.reset()
        elif self._leaving:
            self._entered.put(KeyboardInterrupt)
        else:
            self._leaving = True

    def _end_or_delete(self, event: KeyPressEvent) -> None:
        if self._buffer.text:
            self._buffer.delete()
        else:
            self._entered.put(EOFError)
            self._app.invalidate()

    def _paste(self, event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.count("\n") + 1
        if len(text) > FOLDED_CHARS or lines > FOLDED_LINES:
            number = next(self._paste_numbers)
            self._pastes[number] = text
            text = f"[pasted text #{number}: {len(text):,} characters, {lines:,} lines]"
        self._buffer.insert_text(text)

    def _pasted_out(self, text: str) -> str:
        return _PASTED.sub(lambda found: self._pastes.get(int(found[1]), found[0]), text)

    def _open_question(self, question: _Question, default: str) -> None:
        question.draft = self._buffer.document
        self._question = question
        self._buffer.reset(Document(default))
        self._frame()

    def _close_question(self) -> None:
        if self._question is not None:
            self._buffer.reset(self._question.draft)
            self._question = None
            self._frame()


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))


def _size() -> Size:
    try:
        columns, rows = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns, rows = 0, 0
    return Size(rows=rows or 24, columns=columns or 80)


def _line(text: str) -> Text:
    return Text(one_line(text), "dim", no_wrap=True, overflow="ellipsis")
