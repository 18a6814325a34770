"""The terminal in a thread of its own: keys are read and answers drawn whatever the rest of the program does."""

from __future__ import annotations

import asyncio
import signal
import sys
import termios
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, Queue
from threading import Event as Signal
from threading import Lock, Thread, current_thread, main_thread
from typing import Protocol

from prompt_toolkit.document import Document
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import RenderableType
from rich.text import Text

from task.console.terminal.answer import RunView
from task.console.terminal.input_line import Draft, InputLine
from task.console.terminal.rendering import Renderer, one_line
from task.console.terminal.screen import Screen
from task.console.terminal.typed import folded
from task.store.records import Event

FRAME_SECONDS = 0.05  # between two pictures of an answer
WORK_SECONDS = 0.004  # of one turn of the loop that may go into an answer before keys are read again
IDLE_SECONDS = 0.25  # between two pictures of the clock in the live area
LOST_SECONDS = 1.0  # until it is noticed that the terminal is gone, where no signal says so
LEAVE = "Ctrl-C again, or Ctrl-D, ends the program."
_Item = RunView | Event | RenderableType | Signal
_EndOfInput = type[EOFError] | type[KeyboardInterrupt]


@dataclass(slots=True)
class _Question:
    prompt: Callable[[], str]
    draft: Draft
    replies: Queue[str] = field(default_factory=Queue[str])


class Hooks(Protocol):
    """What the rest of the console fills in, now or later; see `UserInterfaceManager`."""

    complete: Callable[[str], list[str]]
    status: Callable[[], str]
    during_turn: Callable[[str], object] | None
    history_file: Path | None


class Terminal:
    """An input line that stays alive in a thread of its own, whatever the rest of the program does.

    What is printed goes above it. What is typed while an answer is shown, and is no command, is kept for `read`.
    """

    def __init__(self, renderer: Renderer, prompt: str, hooks: Hooks) -> None:
        self._renderer, self._prompt, self._hooks = renderer, prompt, hooks
        self._entered: Queue[str | _EndOfInput] = Queue()
        self._inbox: deque[_Item] = deque()
        self._leaving = False  # Ctrl-C was pressed at the empty prompt
        self._answer: RunView | None = None
        self._question: _Question | None = None
        self._answering, self._reading, self._reader = False, False, Lock()
        self._scheduled, self._drawn_at = False, 0.0
        self._line = InputLine(
            self._enter, self._prompted, self._complete, lambda: self._question is None,
            hooks.history_file,
        )  # fmt: skip
        self._line.buffer.on_text_changed += self._typed
        self._screen = Screen(renderer, self._line, self._status, self._keys())
        self._app = self._screen.app
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
        entered: str | _EndOfInput | None = None
        while entered is None:
            with suppress(KeyboardInterrupt):  # of a Ctrl-C that meant what was under way before
                entered = self._next()
        if isinstance(entered, str):
            return entered
        raise entered

    def _next(self) -> str | _EndOfInput:
        with self._reader:
            self._reading = True
        try:
            return self._entered.get()
        finally:
            with self._reader:
                self._reading = False

    def print(self, part: RenderableType) -> None:
        """Show this above the input, after what came before it."""
        self._post(part)

    def begin(self, answer: RunView) -> None:
        self._answering = True
        self._post(answer)

    def show(self, event: Event) -> None:
        self._post(event)

    def end(self) -> None:
        """Returns when everything is on the screen."""
        drawn = Signal()
        self._answering = False
        self._post(drawn)
        while self.alive and not drawn.wait(0.5):
            pass

    def ask(self, prompt: Callable[[], str], default: str, wait: Callable[[], bool]) -> str | None:
        """A line typed as an answer, `default` being there to be changed; None once `wait` is false.

        What was typed before comes back when the question is over.
        """
        question = _Question(prompt, Draft(Document()))
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

    def _post(self, item: _Item) -> None:
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
            self._screen.draw("".join(above), self._live())
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
            if isinstance(item, RunView):
                self._answer = item
            elif isinstance(item, Signal):
                drawn.append(item)
                self._answer = None
            elif isinstance(item, Event):
                above += map(self._screen.ansi, self._shown(item))
            else:
                above.append(self._screen.ansi(item))

    def _tick(self) -> None:
        if not self._scheduled and self._answer is not None and time.monotonic() >= self._drawn_at + IDLE_SECONDS:
            self._frame()

    def _shown(self, event: Event) -> list[RenderableType]:
        if self._answer is None:
            return []
        self._answer.show(event)
        return self._answer.finished()

    def _live(self) -> list[RenderableType]:
        if self._answer is None or self._question is not None:
            return []
        parts = self._answer.unfinished()
        if self._answer.activity:
            parts += [Text(), Text(f"{self._answer.activity} · Ctrl-C stops", "dim")]
        waiting = [text for text in tuple(self._entered.queue) if isinstance(text, str)]
        for text in waiting:
            parts.append(Text(one_line(f"next: {folded(text)}"), "dim", no_wrap=True, overflow="ellipsis"))
        return parts

    def _prompted(self) -> tuple[str, str]:
        return ("class:question", self._question.prompt()) if self._question else ("class:prompt", self._prompt)

    def _status(self) -> str:
        return LEAVE if self._leaving else self._hooks.status()

    def _complete(self, text: str) -> list[str]:
        return self._hooks.complete(text)

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        keys.add("c-c")(self._interrupt)
        keys.add("c-d")(self._end_or_delete)
        keys.add("c-z")(lambda event: event.app.suspend_to_background())
        return keys

    def _typed(self, _: object) -> None:
        self._leaving = False

    def _enter(self, text: str) -> None:
        if self._question is not None:
            self._question.replies.put(text)
            return
        self._line.remember(text)
        if not (text.startswith("/") and self._in_turn()):
            self._entered.put(text)
        elif self._hooks.during_turn is not None:
            Thread(target=self._hooks.during_turn, args=(text,), daemon=True).start()

    def _in_turn(self) -> bool:
        # After the last event of a run the turn is just ending.
        return self._answering and (self._answer is None or bool(self._answer.activity))

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

    def _open_question(self, question: _Question, default: str) -> None:
        question.draft = self._line.exchange(Draft(Document(default)))
        self._question = question
        self._frame()

    def _close_question(self) -> None:
        if self._question is not None:
            self._line.exchange(self._question.draft)
            self._question = None
            self._frame()
