"""Run pytest with the workspace's Python and report which tests ran: `python -S -c SOURCE FILE ARGUMENT …`.

The report is JSON on standard output, which nothing else gets: the word from FILE, the exit code, the tests. This is
never imported, and any Python that a project has can run it.
"""

# ruff: noqa: E402
import sys

sys.path[:] = filter(None, sys.path)  # no module of the workspace is imported as one of Python's or pytest's

import json
import os
import site

FILE, ARGUMENTS = sys.argv[1], sys.argv[2:]
with open(FILE) as file:
    WORD = file.read()
os.unlink(FILE)
REPORT = os.dup(1)  # children do not inherit a duplicate
os.dup2(2, 1)

# -S left this for now: what an environment runs at its start may lead into the workspace, and so may these two.
sys.modules.update(dict.fromkeys(["sitecustomize", "usercustomize"]))  # type: ignore[arg-type]
site.main()
ROOT, PATH = os.path.join(os.getcwd(), ""), sys.path[:]
sys.path[:] = [place for place in PATH if not place.startswith(ROOT) or place.startswith(sys.prefix)]

import pytest

sys.path[:] = PATH
sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = FILE  # bytecode in the workspace may be of another source
sys.argv[:] = ["pytest", *ARGUMENTS]


class Recorder:
    """The tests that were collected and selected, that ran, passed and failed."""

    def __init__(self) -> None:
        self.tests: dict[str, set[str]] = {name: set() for name in ("collected", "selected", "ran", "passed", "failed")}
        self.raised: set[tuple[str, str]] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_load_initial_conftests(self) -> None:
        sys.path.insert(0, os.getcwd())  # where `python -m pytest` has it, but after its modules and plugins are loaded

    def pytest_itemcollected(self, item: "pytest.Item") -> None:
        self.tests["collected"].add(item.nodeid)

    def pytest_collection_finish(self, session: "pytest.Session") -> None:
        self.tests["selected"].update(item.nodeid for item in session.items)

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_makereport(self, item: "pytest.Item", call: "pytest.CallInfo[None]"):  # type: ignore[no-untyped-def]
        (self.raised.discard if call.excinfo is None else self.raised.add)((item.nodeid, call.when))
        yield

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        if report.failed or (report.passed and (report.nodeid, report.when) in self.raised):  # as hooks may have it
            self.tests["failed"].add(report.nodeid)
        if report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self.tests["passed"].add(report.nodeid)
        if report.when == "teardown":
            self.tests["ran"].add(report.nodeid)


def run(word: str) -> int:
    """Run pytest and report with the word; the exit code is pytest's."""
    own, recorder = os.getpid(), Recorder()
    code = int(pytest.main(ARGUMENTS, plugins=[recorder]))
    if os.getpid() == own:  # not in a process that a test has forked
        with open(REPORT, "w") as report:
            json.dump([word, code, recorder.tests], report, default=list)
    return code


sys.exit(run(globals().pop("WORD")))
