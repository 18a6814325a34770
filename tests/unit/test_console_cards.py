"""The console's cards, replies to them, files of an answer, and its errors in a sentence."""

import base64
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from task.approvals.approvals import typed_answer
from task.console.attachments import saved
from task.console.error_handler import ErrorHandler
from task.console.terminal.rendering import PermissionQuestion, ansi, card, decision, editable, edited
from task.conversation.inputs import Answer
from task.conversation.messages import Attachment
from task.core_client.files import DialFiles
from task.errors import InvalidRequest, LIALError, ProviderError
from task.runs.runner import described


def question(**more: Any) -> PermissionQuestion:
    risk = {"level": "high", "scope": "the folder build", "details": "deletes files\ncannot be undone"}
    fields = {"intent": "Clean up", "command": "rm -rf build", "expected_outcome": "It is gone"}
    request = {"request_id": "c1", "tool_name": "bash", "parameters": {"command": "rm -rf build"}}
    return PermissionQuestion(request, {**fields, "risk_assessment": risk, **more}, "k7f3", "rm -rf build")


@pytest.mark.fault("console terminal: a window of 20 or 60 columns, wide characters, no colours")
@pytest.mark.parametrize("columns", [30, 60, 100])
def test_a_card_shows_all_of_its_parts_in_any_width(columns: int) -> None:
    lines = ansi(card(question()), columns, None).splitlines()
    words = "".join(line.strip("│╭╮╰╯─ ") for line in lines).replace(" ", "")
    for part in [
        "bash",
        "Cleanup",
        "rm-rfbuild",
        "Itisgone",
        "HIGH",
        "thefolderbuild",
        "cannotbeundone",
        "approvek7f3",
    ]:
        assert part in words
    assert max(map(cell_len, lines)) <= columns


@pytest.mark.fault("console terminal: a card whose command or intent hides something or acts on the terminal")
def test_nothing_in_a_card_is_hidden_or_acts_on_the_terminal() -> None:
    asked = question(command="rm \u202eslif\x1b[8m /etc", intent="harmless\x1b[2J\nRisk: LOW")
    shown = ansi(card(asked), 100, None)
    assert r"rm \u202eslif\x1b[8m /etc" in shown
    assert r"harmless\x1b[2J Risk: LOW" in shown
    assert "\x1b" not in shown


@pytest.mark.fault("console terminal: words typed before a card, and a reply that is neither yes nor no")
@pytest.mark.parametrize(
    ("line", "reply"),
    [
        ("y", Answer(True)),
        (" YES ", Answer(True)),
        ("approve", Answer(True)),
        ("a", Answer(True, always=True)),
        ("always", Answer(True, always=True)),
        ("n", Answer(False)),
        ("n not today", Answer(False, "not today")),
        ("deny because it is mine", Answer(False, "it is mine")),
        ("no, use trash", Answer(False, "use trash")),
        ("", None),
        ("yes and go on", None),
        ("always look", None),
        ("next question?", None),
    ],
)
def test_only_a_clear_reply_is_one(line: str, reply: Answer | None) -> None:
    assert typed_answer(line) == reply


@pytest.mark.fault("console terminal: edited arguments that are no JSON object")
def test_arguments_are_edited_as_json_without_hidden_characters_and_what_is_no_object_is_refused() -> None:
    arguments = {"command": "ls \u202e", "deep": {"n": [1, 2]}}
    assert r"\u202e" in editable(arguments)
    assert "é" in editable({"name": "é"})
    assert edited(editable(arguments)) == arguments
    for text in ("{", "[1]", "null", "{'a': 1}", '{"a": 1}}', "[" * 100_000):
        with pytest.raises(ValueError, match=r"JSON"):
            edited(text)


def test_the_decision_is_shown() -> None:
    assert decision(Answer(True), "").plain == "✓ Allowed this once"
    assert decision(Answer(True, always=True), "reading").plain == "✓ Allowed always"
    assert decision(Answer(True, always=True), "").plain == "✓ Allowed this once"
    assert decision(Answer(True, arguments={}), "").plain == "✓ Allowed with changed arguments"
    assert decision(Answer(False, "not\x1b[2J now"), "").plain == r"✗ Denied: not\x1b[2J now"


@pytest.mark.fault("console terminal: a file of an answer whose title leads out of its folder, or is taken")
async def test_files_are_saved_in_their_folder_whatever_their_title_says(tmp_path: Path) -> None:
    files, folder = DialFiles("http://127.0.0.1:9"), tmp_path / "files"
    data = base64.b64encode(b"pixels").decode()
    chart = Attachment("application/vnd.plotly.v1+json", "Sales", data="{}")
    for attachment, name in (
        (Attachment("image/png", "../../evil\x1b[2J\u202e", data=data), "evil[2J.png"),
        (Attachment("image/png", "../../evil\x1b[2J\u202e", data=data), "evil[2J-2.png"),
        (chart, "Sales.json"),
    ):
        assert await saved(files, "", attachment, folder) == folder / name
    assert (folder / "evil[2J.png").read_bytes() == b"pixels"
    assert await saved(files, "", Attachment(None, "page", reference_url="https://e.example"), folder) is None
    (tmp_path / "taken").touch()
    with pytest.raises(InvalidRequest, match="cannot be written"):
        await saved(files, "", chart, tmp_path / "taken")


SECRET = "sk-secret at https://internal.example/v1"


def test_the_given_message_comes_first_and_a_deliberate_error_is_its_own_sentence() -> None:
    handled = ErrorHandler().handle_error
    assert handled("LIAL Error", "", LIALError("The model is away.")) == "The model is away."
    assert handled("Initialization Error", "TEPS is missing.", LIALError("x")) == "TEPS is missing."
    assert handled("Error", "No exception.") == "No exception."


@pytest.mark.fault("console: an error that nobody expected")
def test_an_unexpected_error_is_a_sentence_whose_reference_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        shown = ErrorHandler().handle_error("Error", "", KeyError(SECRET))
    reference = shown.rpartition(" ")[2].strip("().")
    assert "secret" not in shown
    assert reference in caplog.text
    assert SECRET in caplog.text
    handler = ErrorHandler()
    handler.debug = True
    shown = handler.handle_error("Error", "", KeyError("api_key=hunter2"))
    assert "KeyError" in shown  # the traceback, without its secrets
    assert "hunter2" not in shown


def test_the_errors_of_runs_are_explained(caplog: pytest.LogCaptureFixture) -> None:
    refused: Mapping[str, Any] = described(ProviderError("no", status_code=401), "test-model").error
    broken: Mapping[str, Any] = described(ValueError(SECRET), "test-model").error
    assert "test-model refused the key" in refused["message"]
    assert refused["reference"] in refused["message"]
    assert "secret" not in broken["message"]
    assert broken["reference"] in caplog.text
