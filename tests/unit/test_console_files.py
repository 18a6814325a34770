"""Files of an answer: their names, and pictures in terminals that can show them."""

from __future__ import annotations

import base64
import re
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from task.console.terminal.images import Graphics, protocol_of, sequences
from task.console.terminal.saving import saved
from task.conversation.messages import Attachment
from task.errors import InvalidRequest
from task.product import opened
from task.runs.request import RunCaller
from task.settings import Settings

SIXELS, NONE = b"\x1b[?62;4;22c", b"\x1b[?62;22c"


@pytest.mark.fault("console terminal: a terminal without pictures, or one that does not say")
@pytest.mark.parametrize(
    ("environment", "answer", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, b"", "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, b"", "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, b"", "kitty"),
        ({"TERM": "tmux-256color", "KITTY_WINDOW_ID": "1", "TMUX": "x"}, b"", None),
        ({"TERM": "foot"}, SIXELS, "sixel"),
        ({"TERM": "foot"}, NONE, None),
        ({"TERM": "foot"}, b"", None),
        ({"TERM": "xterm-256color", "XTERM_VERSION": "XTerm(390)"}, SIXELS, "sixel"),
        ({"TERM": "xterm-256color"}, SIXELS, None),  # not asked: a late answer would be typed into the input
        ({"TERM": "screen", "XTERM_VERSION": "XTerm(390)"}, SIXELS, None),
        ({}, SIXELS, None),
    ],
)
def test_pictures_are_shown_only_where_the_terminal_can(
    environment: dict[str, str], answer: bytes, protocol: Graphics | None
) -> None:
    assert protocol_of(environment, lambda: answer) == protocol


def picture(path: Path, width: int = 9, height: int = 8) -> Path:
    image = Image.new("RGB", (width, height), "red")
    image.paste("blue", (0, 6, width, height))
    image.save(path)
    return path


def test_kitty_gets_the_picture_in_pieces(tmp_path: Path) -> None:
    noise = Image.effect_noise((200, 200), 90)
    noise.save(tmp_path / "noise.png")
    drawn = sequences(tmp_path / "noise.png", "kitty")
    pieces = re.findall(r"\x1b_G([^;]*);([^\x1b]*)\x1b\\", drawn)
    assert all(len(data) <= 4096 for _, data in pieces)
    assert [settings.rpartition("m=")[2] for settings, _ in pieces] == ["1"] * (len(pieces) - 1) + ["0"]
    shown = Image.open(BytesIO(base64.b64decode("".join(data for _, data in pieces))))
    assert shown.size == noise.size


def test_a_sixel_picture_has_the_pixels_of_the_file(tmp_path: Path) -> None:
    drawn = sequences(picture(tmp_path / "a.png"), "sixel")
    assert drawn.startswith('\x1bPq"1;1;9;8')
    colors = dict(re.findall(r"#(\d+);2;(\d+;\d+;\d+)", drawn))
    bands = drawn.removesuffix("\x1b\\\n").split("-")
    upper, lower = ([(colors[n], row) for n, row in re.findall(r"#(\d+)(![^#$]*)", band)] for band in bands)
    assert upper == [("100;0;0", "!9~")]  # all six rows of all nine columns
    assert lower == [("0;0;100", "!9B")]  # the two rows that are left


@pytest.mark.fault("console terminal: a picture that is none, is broken or too large")
@pytest.mark.parametrize("content", [b"", b"no picture", b"\x89PNG\r\n\x1a\nbroken", b"<svg/>"])
def test_what_is_no_picture_draws_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content)
    assert sequences(path, "kitty") == sequences(path, "sixel") == ""
    assert sequences(tmp_path / "missing.png", "kitty") == ""


@pytest.mark.fault("console terminal: a picture that is none, is broken or too large")
def test_a_large_picture_is_made_smaller(tmp_path: Path) -> None:
    drawn = sequences(picture(tmp_path / "a.png", 2_000, 1_000), "sixel")
    assert drawn.startswith('\x1bPq"1;1;640;320')


@pytest.mark.fault("console terminal: a file of an answer whose title leads out of its folder, or is taken")
async def test_files_are_saved_in_their_folder_whatever_their_title_says(tmp_path: Path) -> None:
    services, _ = opened(Settings.model_validate({"data_dir": str(tmp_path)}), tools=())
    me, folder = RunCaller("local"), tmp_path / "files"
    data = base64.b64encode(b"pixels").decode()
    chart = Attachment("application/vnd.plotly.v1+json", "Sales", data="{}")
    for attachment, name in (
        (Attachment("image/png", "../../evil\x1b[2J\u202e", data=data), "evil[2J.png"),
        (Attachment("image/png", "../../evil\x1b[2J\u202e", data=data), "evil[2J-2.png"),
        (chart, "Sales.json"),
    ):
        assert await saved(services, me, attachment, folder) == folder / name
    assert (folder / "evil[2J.png").read_bytes() == b"pixels"
    assert await saved(services, me, Attachment(None, "page", reference_url="https://e.example"), folder) is None
    (tmp_path / "taken").touch()
    with pytest.raises(InvalidRequest, match="cannot be written"):
        await saved(services, me, chart, tmp_path / "taken")
    await services.close()
