"""Parts of the interpreter server: outputs, files, the line of waiting calls, and the wire to its kernels."""

import asyncio
import json
import os
import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcp_servers.python_interpreter.config import Limits
from mcp_servers.python_interpreter.envelope import DELIMITER, Envelope, Message
from mcp_servers.python_interpreter.files import NewFile, NoSuchFile, open_file, read_file, snapshot
from mcp_servers.python_interpreter.line import Line, NoPlace, Ticket
from mcp_servers.python_interpreter.outputs import PLOTLY, Collector, plain
from mcp_servers.python_interpreter.places import KernelFolders
from mcp_servers.python_interpreter.runtime import runtime_folder


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


def test_streams_displays_and_results_are_kept_as_a_notebook_shows_them() -> None:
    output = collected(stream("a"), stream("!", "stderr"), stream("b"))
    assert ("".join(output.stdout), "".join(output.stderr)) == ("ab", "!")

    output = collected(display(markdown="| a |", html="<table>"), display(html="<b>x</b>", text="<HTML object>"))
    assert output.displays == ["| a |"]
    assert [item.mime_type for item in output.shown] == ["text/html"]

    output = collected(display("execute_result", html="<div>model</div>", text="LinearRegression()"))
    assert (output.result, output.shown) == ("LinearRegression()", [])

    output = collected(
        display(display_id="p", text="1 %"),
        display("update_display_data", "p", text="99 %"),
        display("update_display_data", "q", text="?"),
    )
    assert output.displays == ["99 %"]

    assert collected(stream("old"), ("clear_output", {"wait": False})).stdout == []
    waiting = collected(stream("old"), ("clear_output", {"wait": True}))
    assert waiting.stdout == ["old"]
    waiting(message(*stream("new")))
    assert waiting.stdout == ["new"]

    assert collected(display(png="", text="x")).shown == []


@pytest.mark.fault("interpreter: endless output")
def test_too_much_output_is_reported_and_discarded() -> None:
    output = collected(*[stream("x" * 600)] * 3, limits=replace(Limits(), output_bytes=1500))
    assert output.overflow.is_set()
    assert len("".join(output.stdout)) == 1200


def test_a_traceback_has_no_colours_and_progress_bars_leave_their_last_line() -> None:
    output = collected(("error", {"traceback": ["\x1b[31mZeroDivisionError\x1b[0m: division"]}))
    assert output.traceback == "ZeroDivisionError: division"
    assert plain("10 %\r50 %\r100 %\nnext\r\nlast") == "100 %\nnext\nlast"

    assert plain("x" * 1_000_000 + "\r" + "y") == "y"


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


@pytest.fixture
def place(tmp_path: Path) -> KernelFolders:
    place = KernelFolders(tmp_path / "kernel", None)
    place.make()
    return place


def test_new_and_changed_files_are_listed_oldest_change_first_and_read_up_to_the_limit(place: KernelFolders) -> None:
    (place.work / "same").write_text("same")
    (place.work / "old").write_text("old")
    before = snapshot(place.work, 100)
    (place.work / "old").write_text("changed")
    (place.work / "sub").mkdir()
    (place.work / "sub" / "new").write_text("new")
    os.utime(place.work / "old", ns=(1, 1))
    assert snapshot(place.work, 100).since(before) == ["old", "sub/new"]
    assert read_file(place.work, "sub/new", 2) == b"ne"


@pytest.mark.fault("interpreter: hard links in the outputs")
def test_links_hidden_names_pipes_and_hard_links_are_not_seen_but_their_room_counts(place: KernelFolders) -> None:
    (place.work / ".hidden").mkdir()
    (place.work / ".hidden" / "big").write_bytes(bytes(100_000))
    (place.work / "one").write_text("1")
    os.link(place.work / "one", place.work / "two")
    os.symlink("/etc/passwd", place.work / "link")
    os.symlink("/", place.work / "root")
    os.mkfifo(place.work / "pipe")
    found = snapshot(place.work, 100)
    assert (dict(found.files), found.complete) == ({}, True)
    assert found.size >= 100_000


@pytest.mark.fault("interpreter: 10,000 files in the outputs")
@pytest.mark.fault("interpreter: files hidden from the limit in deep folders")
def test_files_in_deep_folders_count_and_too_many_are_not_all_looked_at(place: KernelFolders) -> None:
    for number in range(20):
        (place.work / str(number)).touch()
    assert not snapshot(place.work, 10).complete
    assert snapshot(place.root / "nowhere", 10).complete

    deep = place.work.joinpath(*["a"] * 20)
    deep.mkdir(parents=True)
    (deep / "large").write_bytes(bytes(100_000))
    found = snapshot(place.work, 1000)
    assert (found.complete, found.size >= 100_000) == (True, True)
    deep.joinpath(*["b"] * 100).mkdir(parents=True)
    assert not snapshot(place.work, 1000).complete


@pytest.mark.fault("interpreter: links, sockets and pipes in the outputs")
@pytest.mark.parametrize("path", ["", "..", "../log", "/etc/passwd", "a/../b", "link", "folder/passwd", "pipe", "sub"])
def test_nothing_but_a_plain_file_below_the_folder_can_be_opened(place: KernelFolders, path: str) -> None:
    (place.root / "log").write_text("the server's own")
    os.symlink("/etc/passwd", place.work / "link")
    os.symlink("/etc", place.work / "folder")
    os.mkfifo(place.work / "pipe")
    (place.work / "sub").mkdir()
    with pytest.raises(NoSuchFile):
        open_file(place.work, path)


@pytest.mark.fault("interpreter: a link where an input goes")
def test_a_file_appears_whole_or_not_at_all_and_replaces_a_link(place: KernelFolders, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    os.symlink(victim, place.work / "data.csv")
    with NewFile(place, "data.csv") as file:
        file.write(b"half")
    assert (place.work / "data.csv").is_symlink()
    with NewFile(place, "data.csv") as file:
        file.write(b"whole")
        file.finish()
    assert (place.work / "data.csv").read_bytes() == b"whole"
    assert (victim.read_text(), os.listdir(place.work)) == ("untouched", ["data.csv"])


@pytest.mark.fault("interpreter: a deleted working directory")
def test_a_working_directory_that_was_replaced_is_created_again(place: KernelFolders) -> None:
    place.work.rmdir()
    os.symlink("/etc", place.work)
    place.make()
    assert place.work.is_dir()
    assert not place.work.is_symlink()


def test_leftovers_of_dead_servers_are_deleted_and_a_folder_too_deep_for_sockets_is_not_used(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as short:
        base = Path(short)
        (base / "dial-py-dead" / "kernel").mkdir(parents=True)
        with runtime_folder(base) as first, runtime_folder(base) as second:
            assert sorted(base.iterdir()) == sorted([first, second])
            assert first.stat().st_mode & 0o777 == 0o711
        assert list(base.iterdir()) == []

    deep = tmp_path / ("x" * 80)
    with runtime_folder(deep) as folder:
        assert len(str(folder / "0123456789ab" / "run" / "k-1")) < 100
    assert not deep.exists()


PATIENCE = 25.0


@pytest.mark.fault("interpreter: more calls of code than may run")
async def test_calls_get_their_places_in_the_order_in_which_they_came() -> None:
    line, order = Line(2), list[str]()

    async def call(owner: str, began: asyncio.Event, end: asyncio.Event) -> None:
        async with line.place(Ticket(owner), PATIENCE):
            order.append(owner)
            began.set()
            await end.wait()

    events = [(asyncio.Event(), asyncio.Event()) for _ in "abcd"]
    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
        for owner, (began, end) in zip("abcd", events, strict=True):
            group.create_task(call(owner, began, end))
        for began, end in events:
            await began.wait()
            end.set()
    assert order == list("abcd")


@pytest.mark.fault("interpreter: a call cancelled while it waits for a kernel")
async def test_a_waiting_call_knows_its_place_and_one_that_gives_up_leaves_the_line() -> None:
    line = Line(1)
    first, second, third = Ticket("a"), Ticket("b"), Ticket("c")
    async with AsyncExitStack() as held:
        await held.enter_async_context(line.place(first, PATIENCE))
        waiting = [asyncio.create_task(entered(line, ticket)) for ticket in (second, third)]
        await asyncio.sleep(0)
        assert [(ticket.place, ticket.length) for ticket in (first, second, third)] == [(0, 0), (1, 2), (2, 2)]
        second.give_up()
        with pytest.raises(NoPlace, match="cancelled"):
            await waiting[0]
        assert (third.place, third.length) == (1, 1)
    await asyncio.wait_for(waiting[1], PATIENCE)
    with pytest.raises(NoPlace, match="cancelled"):
        await entered(line, second)
    assert third.waited > 0


@pytest.mark.fault("interpreter: one person whose calls take all places")
async def test_who_has_half_of_the_places_is_passed_over() -> None:
    line = Line(4)
    async with AsyncExitStack() as held:
        for _ in range(2):
            await held.enter_async_context(line.place(Ticket("greedy"), PATIENCE))
        third = asyncio.create_task(entered(line, Ticket("greedy")))
        await asyncio.wait_for(entered(line, Ticket("other")), PATIENCE)
        assert not third.done()
    await asyncio.wait_for(third, PATIENCE)


@pytest.mark.fault("interpreter: a wait for a kernel that takes too long")
async def test_a_wait_ends_with_its_time_and_a_cancelled_one_frees_no_place_that_it_did_not_have() -> None:
    line = Line(1)
    async with line.place(Ticket("a"), PATIENCE):
        with pytest.raises(NoPlace, match="no kernel became free within 0 seconds"):
            await entered(line, Ticket("b"), 0.01)
        cancelled = asyncio.create_task(entered(line, Ticket("c")))
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.wait({cancelled})
        with pytest.raises(NoPlace):
            await entered(line, Ticket("d"), 0.01)
    await entered(line, Ticket("e"))


async def entered(line: Line, ticket: Ticket, seconds: float = PATIENCE) -> None:
    async with line.place(ticket, seconds):
        pass


KEY = b"key of one kernel"


def test_messages_are_opened_with_their_key_only_and_name_their_request() -> None:
    _, frames = Envelope(KEY).sealed("stream", {"text": "hi \ud800"})
    assert Envelope(KEY).opened([b"topic", *frames]) == Message("stream", "", {"text": "hi ?"}, 21)
    assert Envelope(b"another").opened(frames) is None

    envelope = Envelope(KEY)
    asked, request = envelope.sealed("execute_request", {})
    parts = [b'{"msg_type": "status"}', request[2], b"{}", b'{"execution_state": "idle"}']
    answer = envelope.opened([DELIMITER, envelope._signature(parts), *parts])
    assert answer == Message("status", asked, {"execution_state": "idle"}, 27)

    envelope = Envelope(KEY)
    parts = [b'{"msg_type": [[]]}', b'{"msg_id": {}}', b"{}", b'{"text": "\\ud800 \xff", "number": NaN}']
    answer = envelope.opened([DELIMITER, envelope._signature(parts), *parts])
    assert answer == Message("", "", {"text": "? \ufffd", "number": None}, len(parts[3]))

    for broken in ([], [b"x"], [DELIMITER], [DELIMITER, b"sig"], [DELIMITER, b"", b"{}", b"{}", b"{}", b"{}"]):
        assert Envelope(KEY).opened(broken) is None


@pytest.mark.fault("interpreter: a kernel message forged by its code")
@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize(
    "part", [b"", b"[]", b"{", b"\xff", b"1", b"NaN", b'{"a":' * 3000 + b"1" + b"}" * 3000, b"[" * 100_000, b"9" * 5000]
)
def test_a_signed_message_of_nonsense_is_dropped(part: bytes, place: int) -> None:
    envelope = Envelope(KEY)
    parts = [b"{}"] * 4
    parts[place] = part
    assert envelope.opened([DELIMITER, envelope._signature(parts), *parts]) is None
