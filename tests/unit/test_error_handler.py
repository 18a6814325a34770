"""ErrorHandler: a sentence for people, the details in the log."""

from __future__ import annotations

import logging

import pytest

from task.console.error_handler import ErrorHandler, described
from task.errors import LIALError, ProviderError

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
    refused = described(ProviderError("no", status_code=401), "test-model").error
    broken = described(ValueError(SECRET), "test-model").error
    assert "test-model refused the key" in refused["message"]
    assert refused["reference"] in refused["message"]
    assert "secret" not in broken["message"]
    assert broken["reference"] in caplog.text
