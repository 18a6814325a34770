"""Markdown at the terminal: nothing of an answer gets lost."""

from __future__ import annotations

import pytest

from task.console.terminal.rendering import Renderer, TerminalMarkdown


@pytest.mark.parametrize("text", ["1175.", "7)", "-", "*", "1175.\n\nThat is it."])
def test_a_number_or_a_sign_alone_is_not_an_empty_list(text: str) -> None:
    assert Renderer(None).ansi(TerminalMarkdown(text), 40) == f"{text}\n"


def test_items_with_text_keep_their_marks_beside_one_without() -> None:
    shown = Renderer(None).ansi(TerminalMarkdown("3. a\n4.\n5. b"), 40)
    assert [line.split() for line in shown.splitlines()] == [["3", "a"], ["4."], ["5", "b"]]
