"""These tests need the real model; without it there is nothing here to collect."""

from task.cli.model_choice import embedded_model
from task.settings import load_settings
from tests.support.isolation import OUTSIDE

MODEL = embedded_model(load_settings(environ=OUTSIDE))
collect_ignore_glob = [] if MODEL.found() else ["test_*.py"]


def pytest_report_header() -> str:
    return f"local model: {MODEL.found() or 'not on this machine; dial-agent model pull'}"
