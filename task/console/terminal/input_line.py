"""The line that a user types in: several lines, history, completion, and long pastes shown as a word."""

import re
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.layout import Window
from prompt_toolkit.layout.controls import BufferControl
from prompt_toolkit.layout.dimension import Dimension
from prompt_toolkit.widgets import SearchToolbar

from task.console.terminal.rendering import is_long, last_word, one_line, safe, size_of

KEPT_CHARS = 10_000  # of an input in the history of inputs
MENU_LINES = 8
Draft = tuple[Document, dict[int, str]]
_PASTED = re.compile(r"\[pasted text #(\d+): [^\]]*\]")


class InputLine:
    """What is typed goes to `entered` with Enter. `prompt` is a style and the text before the input.

    `completes` says whether candidates are offered while the user types; Tab shows them in any case.
    """

    def __init__(
        self,
        entered: Callable[[str], None],
        prompt: Callable[[], tuple[str, str]],
        complete: Callable[[str], list[str]],
        completes: Callable[[], bool],
        history_file: Path | None,
    ) -> None:
        self._entered, self._prompt = entered, prompt
        self._completing = False  # Tab was pressed
        self._pastes: dict[int, str] = {}
        self._paste_numbers = count(1)

        def while_typing() -> bool:
            text = self.buffer.document.text_before_cursor
            return completes() and (text.startswith("/") or last_word(text).startswith("@"))

        def changed(buffer: Buffer) -> None:
            self._completing = False

        def completed(buffer: Buffer) -> None:
            # The first candidate of those that come: an earlier lookup may answer for the one that Tab asks for.
            if self._completing and buffer.complete_state and buffer.complete_state.completions:
                self._completing = False
                buffer.complete_next()

        self.buffer = Buffer(
            ThreadedCompleter(_WordCompleter(complete)),
            history=_history(history_file),
            multiline=True,
            complete_while_typing=Condition(while_typing),
            on_text_changed=changed,
            on_completions_changed=completed,
        )
        self.search = SearchToolbar()
        self.control = BufferControl(self.buffer, search_buffer_control=self.search.control)

    def window(self, rows: Callable[[], int]) -> Window:
        """The input on the screen, which has so many rows; it takes at most half of them."""

        def height() -> Dimension:
            least = MENU_LINES + 1 if self.buffer.complete_state else 1
            return Dimension(min=least, max=max(rows() // 2, least))

        def prefix(line: int, wraps: int) -> StyleAndTextTuples:
            style, text = self._prompt()
            return [(style, safe(text))] if line == 0 and wraps == 0 else [("", "  ")]

        return Window(self.control, height=height, dont_extend_height=True, wrap_lines=True, get_line_prefix=prefix)

    def keys(self) -> KeyBindings:
        keys, buffer = KeyBindings(), self.buffer

        @keys.add("enter")
        def enter(event: KeyPressEvent) -> None:
            menu, document = buffer.complete_state, buffer.document
            if menu and menu.current_completion and len(menu.completions) > 1:
                buffer.complete_state = None
            elif document.text_before_cursor.endswith("\\") and not document.text_after_cursor:
                buffer.delete_before_cursor()
                buffer.insert_text("\n")
            else:
                buffer.reset()
                pastes, self._pastes = self._pastes, {}
                self._entered(_PASTED.sub(lambda found: pastes.get(int(found[1]), found[0]), document.text))

        @keys.add("tab")
        def tab(event: KeyPressEvent) -> None:
            if buffer.complete_state:
                buffer.complete_next()
            else:
                self._completing = True
                buffer.start_completion()

        @keys.add(Keys.BracketedPaste)
        def paste(event: KeyPressEvent) -> None:
            text = event.data.replace("\r\n", "\n").replace("\r", "\n")
            if is_long(text):
                number = next(self._paste_numbers)
                self._pastes[number] = text
                text = f"[pasted text #{number}: {size_of(text)}]"
            buffer.insert_text(text)

        keys.add("escape", "enter")(lambda event: buffer.insert_text("\n"))
        return keys

    def exchange(self, draft: Draft) -> Draft:
        """Put another text into the line; the one that was there, with the pastes that only its words stand for."""
        before = (self.buffer.document, self._pastes)
        document, self._pastes = draft
        self.buffer.reset(document)
        return before

    def remember(self, text: str) -> None:
        """Keep an input for the arrow keys."""
        if text.strip() and len(text) <= KEPT_CHARS:
            self.buffer.history.append_string(text)


class _WordCompleter(Completer):
    def __init__(self, complete: Callable[[str], list[str]]) -> None:
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        for candidate in self._complete(before):
            yield Completion(candidate, -len(last_word(before)), display=one_line(candidate))


def _history(path: Path | None) -> History:
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
