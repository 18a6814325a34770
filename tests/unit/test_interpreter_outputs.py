"""What a kernel says becomes text and files within bounds, whatever it says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_servers.python_interpreter.config import Limits
from mcp_servers.python_interpreter.envelope import Message
from mcp_servers.python_interpreter.outputs import PLOTLY, Collector, plain
from mcp_servers.python_interpreter.report import guessed_type


def collected(*messages: tuple[str, dict[str, Any]], limits: Limits | None = None) -> Collector:
    output = Collector(limits or Limits())
    for kind, content in messages:
        output(message(kind, content))
    return output


def message(kind: str, content: dict[str, Any]) -> Message:
    return Message(kind, "asked", content, len(json.dumps(content)))


def stream(text: str, name: str = "stdout") -> tuple[str, dict[str, Any]]:
    return "stream", {"name": name, "text": text}


def display(kind: str = "display_data", display_id: str = "", **data: Any) -> tuple[str, dict[str, Any]]:
    types = {
        "png": "image/png",
        "html": "text/html",
        "text": "text/plain",
        "markdown": "text/markdown",
        "plotly": PLOTLY,
    }
    transient = {"display_id": display_id} if display_id else {}
    return kind, {"data": {types[name]: value for name, value in data.items()}, "transient": transient}


def test_streams_are_kept_apart_in_order() -> None:
    output = collected(stream("a"), stream("!", "stderr"), stream("b"))
    assert ("".join(output.stdout), "".join(output.stderr)) == ("ab", "!")


def test_a_table_is_markdown_and_html_alone_is_a_file() -> None:
    output = collected(display(markdown="| a |", html="<table>"), display(html="<b>x</b>", text="<HTML object>"))
    assert output.displays == ["| a |"]
    assert [item.mime_type for item in output.shown] == ["text/html"]


def test_the_decoration_of_a_result_is_not_a_file() -> None:
    output = collected(display("execute_result", html="<div>model</div>", text="LinearRegression()"))
    assert (output.result, output.shown) == ("LinearRegression()", [])


def test_an_updated_display_replaces_the_first_and_an_unknown_one_is_ignored() -> None:
    output = collected(
        display(display_id="p", text="1 %"),
        display("update_display_data", "p", text="99 %"),
        display("update_display_data", "q", text="?"),
    )
    assert output.displays == ["99 %"]


def test_cleared_output_is_gone_at_once_or_with_the_next_words() -> None:
    assert collected(stream("old"), ("clear_output", {"wait": False})).stdout == []
    waiting = collected(stream("old"), ("clear_output", {"wait": True}))
    assert waiting.stdout == ["old"]
    waiting(message(*stream("new")))
    assert waiting.stdout == ["new"]


@pytest.mark.fault("interpreter: endless output")
def test_too_much_output_is_reported_and_discarded() -> None:
    output = collected(*[stream("x" * 600)] * 3, limits=replace(Limits(), output_bytes=1500))
    assert output.overflow.is_set()
    assert len("".join(output.stdout)) == 1200


def test_a_traceback_has_no_colours_and_progress_bars_leave_their_last_line() -> None:
    output = collected(("error", {"traceback": ["\x1b[31mZeroDivisionError\x1b[0m: division"]}))
    assert output.traceback == "ZeroDivisionError: division"
    assert plain("10 %\r50 %\r100 %\nnext\r\nlast") == "100 %\nnext\nlast"


def test_a_line_of_a_million_characters_takes_no_time() -> None:
    assert plain("x" * 1_000_000 + "\r" + "y") == "y"


def test_unreadable_pictures_are_left_out() -> None:
    assert collected(display(png="", text="x")).shown == []


def nested(levels: int) -> Any:
    return orjson.loads(b"[" * levels + b"]" * levels)


SCALAR = st.sampled_from([None, True, -1, "", "text", "\x1b]unclosed", "\r\r", nested(1000)])
JSON = SCALAR | st.lists(SCALAR, max_size=2) | st.dictionaries(st.just("key"), SCALAR, max_size=1)
TYPES = st.sampled_from(["image/png", "image/svg+xml", "text/plain", "text/html", PLOTLY, "x"])
DATA = JSON | st.dictionaries(TYPES, JSON, max_size=3)
FIELDS = {"text": JSON, "data": DATA, "wait": JSON, "name": JSON, "traceback": JSON, "transient": JSON}


@pytest.mark.fault("interpreter: a kernel message forged by its code")
@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["stream", "display_data", "execute_result", "update_display_data", "error", "clear_output", "?"]),
    st.fixed_dictionaries({}, optional=FIELDS),
)
def test_no_message_of_a_kernel_breaks_the_collector(kind: str, content: dict[str, Any]) -> None:
    output = Collector(Limits())
    output(Message(kind, "asked", content, 100))
    assert all(isinstance(text, str) for text in [*output.stdout, *output.displays, output.result, output.traceback])


def test_office_files_have_their_types_on_every_system() -> None:
    assert guessed_type("a.XLSX").endswith("spreadsheetml.sheet")
    assert guessed_type("a.docx").endswith("wordprocessingml.document")
    assert guessed_type("a.unheard-of") == "application/octet-stream"
