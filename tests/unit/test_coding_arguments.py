"""What `dial-agent run` refuses before it starts anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from task.cli.run import RunArguments, run
from task.errors import InvalidRequest
from task.settings import load_settings


@pytest.mark.fault(
    "coding: a task, a command or a workspace that is no text, an empty command, and a task beside `--resume`"
)
@pytest.mark.fault("coding: a home as a workspace")
@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        (RunArguments(" "), "The task is empty"),
        (RunArguments("Fix \udcff it."), "The task is not UTF-8 text"),
        (RunArguments("Fix it.", setup=""), "--setup is empty"),
        (RunArguments("Fix it.", verify=" "), "--verify is empty"),
        (RunArguments("Fix it.", setup="make \udcff"), "--setup is not UTF-8 text"),
        (RunArguments("Fix it.", verify="make \udcff"), "--verify is not UTF-8 text"),
        (RunArguments("Fix it.", workspace=Path("/\udcff")), "--workspace is not UTF-8 text"),
        (RunArguments("Fix it.", workspace=Path("~")), "--workspace: .*; --unsafe-workspace permits a wide one"),
        (RunArguments("Fix it.", resume="code_12345678"), "The run code_12345678 has its task"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused_in_one_sentence(
    given: RunArguments, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = load_settings(environ={"HOME": str(tmp_path)}, directory=tmp_path)
    with pytest.raises(InvalidRequest, match=refusal):
        run(settings, given)
