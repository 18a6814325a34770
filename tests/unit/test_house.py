"""The ratchet on the size and the shape of the code."""

from __future__ import annotations

import tomllib

from scripts.house import Figures, lowered, measured, problems, written

FILES = {
    "task/loop.py": "from task.tools.base import call\n\n\ndef _asked():\n    return call()\n\n\nasked = _asked()\n",
    "task/tools/base.py": "class Answer: ...\n\n\ndef call():\n    return Answer()\n",
    "task/local/core/app.py": "class Answer: ...\n",
    "task/permissions/shell.py": "",
    "task/permissions/programs.toml": "a = 1\nb = 2\n",
    "tests/test_loop.py": "x = 1\n",
}


def test_each_room_has_its_lines_and_files() -> None:
    figures = measured(FILES)
    assert figures["task"] == {"files": 1, "lines": 8}
    assert figures["task/tools"] == {"files": 1, "lines": 5}
    assert figures["task/local/core"] == {"files": 1, "lines": 1}
    assert figures["task/permissions.reader"] == {"files": 1, "lines": 0, "toml": 2}
    assert figures["task as a whole"] == {"files": 4, "lines": 14}
    assert figures["tests"] == {"files": 1, "lines": 1}


def test_the_shape_counts_what_tires_a_reader() -> None:
    shape = measured(FILES)["shape"]
    assert shape["private functions called from one place"] == 1
    assert shape["class names defined in two files"] == 1
    assert shape["files with one importer"] == 1


def test_a_figure_above_its_bound_fails() -> None:
    (problem,) = problems({"task": {"lines": 11}}, {"task": {"lines": 10}})
    assert "11 lines, at most 10" in problem


def test_a_gain_that_is_not_written_down_fails() -> None:
    (problem,) = problems({"task": {"lines": 9}}, {"task": {"lines": 10}})
    assert "make house" in problem


def test_a_new_room_needs_a_bound() -> None:
    (problem,) = problems({"task/helpers": {"lines": 9}}, {"task": {"lines": 10}})
    assert "task/helpers" in problem


def test_writing_lowers_bounds_and_never_raises_them() -> None:
    bounds: Figures = {"task": {"lines": 10, "files": 3}, "task/gone": {"lines": 5}}
    assert lowered({"task": {"lines": 12, "files": 2}}, bounds) == {"task": {"lines": 10, "files": 2}}


def test_what_is_written_is_read_back() -> None:
    tables: Figures = {"task/tools": {"lines": 10}, "shape": {"mean length of a line": 50.3}}
    assert tomllib.loads(written(tables)) == tables
