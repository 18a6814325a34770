"""The table that `dial-agent up` prints names what can be opened."""

from __future__ import annotations

import io

from rich.console import Console

from task.commands.model_choice import ChosenModel
from task.commands.up_output import overview


def printed(*, page: bool) -> list[str]:
    model = ChosenModel("demo", "scripted-demo", "no other was found")
    table = overview("http://127.0.0.1:5030", "http://127.0.0.1:8080", model, ["calculator"], 1.0, page=page)
    paper = io.StringIO()
    Console(width=120, file=paper).print(table)
    return [" ".join(line.replace("│", " ").split()) for line in paper.getvalue().splitlines()]


def test_the_first_row_is_the_address_of_the_web_page() -> None:
    assert printed(page=True)[2] == "Web page http://127.0.0.1:5030/"


def test_a_web_page_that_is_switched_off_is_not_listed() -> None:
    lines = printed(page=False)
    assert lines[2] == "Agent http://127.0.0.1:5030"
    assert not any("Web page" in line for line in lines)
