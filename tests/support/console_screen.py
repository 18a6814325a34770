"""The console's user interface with nothing behind it: each input says what to show.

stream [WORDS]   an answer of numbered words, 200 a second, until it is complete or stopped
ask [SECONDS]    a card; its answer is printed, and it is answered elsewhere once there is a file `elsewhere`
anything else    is printed as Python writes it
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from task.console.ui_manager import PermissionQuestion, UserInterfaceManager
from task.store.records import Event

CARD = {"intent": "Tidy", "command": "rm -rf build", "expected_outcome": "Gone", "risk_assessment": {"level": "high"}}
QUESTION = PermissionQuestion({"tool_name": "bash", "parameters": {"command": "rm -rf build"}}, CARD, "k7f3", "this")
PACE = 0.005


def main(settings: dict[str, Any]) -> None:
    ui = UserInterfaceManager(settings)
    ui.complete = lambda text: [name for name in ("/help", "/quit") if text.startswith("/") and name.startswith(text)]
    ui.status = lambda: "the line of status"
    ui.during_turn = lambda text: ui.display_system_message(f"at once {text}")
    ui.history_file = Path("history")
    ui.display_system_message("ready")
    while True:
        try:
            text = ui.get_user_input()
        except (EOFError, KeyboardInterrupt) as end:
            ui.close()
            print("left by", type(end).__name__)
            return
        try:
            _take(ui, text)
        except KeyboardInterrupt:
            ui.display_system_message("interrupted")


def _take(ui: UserInterfaceManager, text: str) -> None:
    word, _, number = text.partition(" ")
    if word == "stream":
        _stream(ui, int(number or 10**6))
        ui.display_system_message("complete ✓")
    elif word == "ask":
        answer = ui.ask_permission(QUESTION, float(number or 600), Path("elsewhere").exists)
        ui.display_system_message(f"answer {answer}")
    elif text:
        ui.display_system_message(f"got {text!r}" if len(text) < 100 else f"got {len(text)} characters")


def _stream(ui: UserInterfaceManager, words: int) -> None:
    with ui.answering() as show:
        for number in range(words):
            end = "\n\n" if number % 40 == 39 else " "
            show(Event(number + 1, "text", {"text": f"w{number}{end}"}))
            time.sleep(PACE)
        show(Event(words + 1, "finished", {"status": "finished", "run_id": "r", "session_id": None}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]) if sys.argv[1:] else {})
