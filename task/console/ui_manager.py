"""UserInterfaceManager: what a person at the terminal reads and types."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from task.permissions.icerc import visible
from task.store.records import Event


@dataclass(frozen=True, slots=True)
class PermissionQuestion:
    """May this call run? `card` is the ICERC card, `code` answers it anywhere, `grant` is what "always" would allow."""

    request: Mapping[str, Any]
    card: Mapping[str, Any]
    code: str = ""
    grant: str = ""


@dataclass(frozen=True, slots=True)
class PermissionAnswer:
    """What the person decided; `arguments` replace those of the call."""

    allowed: bool
    reason: str = ""
    always: bool = False
    arguments: Mapping[str, Any] | None = None


class AnswerView(Protocol):
    """Where the events of a run are shown, in their order, from any thread."""

    def show(self, event: Event) -> None: ...


class UserInterfaceManager:
    """Shows messages and reads input. Source: framework reference, UI Manager.

    Where input or output is not a terminal it writes plain text and asks nothing. The rest of the console sets its
    attributes: `commands` are the slash commands with their help lines, `complete` gives the completions of the text
    before the cursor, `status` the line below the input, `during_turn` takes the commands that are typed while a turn
    runs (in a thread of its own), `history_file` keeps the typed lines.
    """

    def __init__(self, config: Mapping[str, Any] | None = None) -> None:
        self._config = dict(config or {})
        self.debug_mode = bool(self._config.get("debug_mode", False))
        self.commands: Mapping[str, str] = {}
        self.complete: Callable[[str], list[str]] = lambda text: []
        self.status: Callable[[], str] = lambda: ""
        self.during_turn: Callable[[str], None] | None = None
        self.history_file: Path | None = None

    @property
    def interactive(self) -> bool:
        return sys.stdin.isatty() and sys.stdout.isatty()

    def get_user_input(self) -> str:
        """What the person typed, which may have several lines.

        Raises:
            EOFError: Ctrl-D, or the end of the input.
            KeyboardInterrupt: Ctrl-C at the empty prompt.
        """
        return input(self._config.get("prompt_symbol", "> ") if self.interactive else "")

    def display_system_message(self, message: str) -> None:
        self._print(self._config.get("system_prefix", "System: ") + message)

    def display_user_message(self, message: str) -> None:
        self._print(self._config.get("prompt_symbol", "> ") + message)

    def display_assistant_message(self, message: str) -> None:
        self._print(self._config.get("assistant_prefix", "Assistant: ") + message)

    def display_error_message(self, error_type: str, error_message: str) -> None:
        print(visible(f"{self._config.get('error_prefix', 'Error: ')}{error_message}"), file=sys.stderr, flush=True)

    def display_special_command_help(self, commands: Mapping[str, str]) -> None:
        width = max(map(len, commands), default=0)
        self._print("\n".join(f"{name:<{width}}  {text}" for name, text in commands.items()))

    @contextmanager
    def answering(self) -> Generator[AnswerView]:
        """Show the events of a run while the block runs."""
        yield _PlainAnswer()
        self._print("")

    def ask_permission(
        self, question: PermissionQuestion, seconds: float, answered_elsewhere: Callable[[], bool]
    ) -> PermissionAnswer | None:
        """The person's answer; None: none in time, nobody to ask, or it was answered elsewhere."""
        if not self.interactive or answered_elsewhere():
            return None
        for name, value in question.card.items():
            self._print(f"{name}: {value}")
        reply = input("May I do this? [y/n/a] ").strip().lower()
        return PermissionAnswer(reply in ("y", "a"), always=reply == "a")

    def close(self) -> None:
        """Give the terminal back."""

    def _print(self, text: str) -> None:
        print(visible(text), flush=True)


class _PlainAnswer:
    def show(self, event: Event) -> None:
        if event.type == "text":
            print(visible(event.data["text"]), end="", flush=True)
        elif event.type == "error":
            print(visible(event.data["error"]["message"]), file=sys.stderr, flush=True)
