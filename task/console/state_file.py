"""The file that keeps the console's conversation from one start to the next."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from task.conversation.message_manager import MessageManager
from task.errors import FrameworkError, SettingsError


@dataclass(frozen=True, slots=True)
class StateFile:
    """The serialised history with the id of its session; without a path nothing is kept."""

    path: Path | None

    def load(self, history: MessageManager) -> str | None:
        """Fill the history; the session's id.

        Raises:
            SettingsError: the file is something else, and would be overwritten.
        """
        if self.path is None or not self.path.exists():
            return None
        try:
            state: dict[str, Any] = json.loads(self.path.read_text(encoding="utf-8"))
            session_id = state.get("session_id")
            history.deserialize({"messages": state["messages"]})  # its limits are those of the settings
        except (OSError, ValueError, TypeError, AttributeError, KeyError, FrameworkError) as error:
            fix = "Move it away, or name another file."
            raise SettingsError(f"console.state_file: {self.path} is not a saved conversation. {fix}") from error
        return session_id if isinstance(session_id, str) else None

    def save(self, history: MessageManager, session_id: str | None) -> None:
        """Replace the file at once; only its owner may read it.

        Raises:
            SettingsError: it cannot be written.
        """
        if self.path is None:
            return
        unfinished = self.path.with_name(f".{self.path.name}.part")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump({"session_id": session_id, **history.serialize()}, file, ensure_ascii=False)
            unfinished.replace(self.path)
        except (OSError, UnicodeEncodeError) as error:
            raise SettingsError(f"console.state_file: {self.path} cannot be written: {error}.") from error
