"""How workers behind one port count each other, by the process ids that they leave in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from task.cli.workers import Place


def test_a_worker_counts_while_its_process_is_alive(tmp_path: Path) -> None:
    one, other = (Place(number, 2, tmp_path) for number in (1, 2))
    assert (one.ready(), one.joined(os.getpid())) == ((0, 2), False)
    one.join()
    assert (other.ready(), one.joined(os.getpid()), other.joined(os.getpid())) == ((1, 2), True, False)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (tmp_path / "2").write_text(str(ended.pid))
    assert one.ready() == (1, 2)


def test_one_that_takes_the_place_of_another_removes_its_gauges_alone(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("77")
    for name in ("gauge_livesum_77.db", "gauge_livesum_78.db", "counter_77.db"):
        (tmp_path / name).touch()
    Place(1, 2, tmp_path).join()
    assert {file.name for file in tmp_path.glob("*.db")} == {"gauge_livesum_78.db", "counter_77.db"}


def test_a_place_is_handed_over_as_text() -> None:
    place = Place(1, 2, Path("/tmp/a,b"))
    assert Place.parse(str(place)) == place
