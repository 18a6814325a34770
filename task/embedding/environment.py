"""The embedding process's own Python environment: where it is, how far its installation is, and installing it."""

import fcntl
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Literal

from task.errors import AgentError

FOLDER = Path(__file__).parents[2] / ".venv-embedding"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
COMMAND = "dial-agent embedding"
_INTEL_MAC = (sys.platform, platform.machine()) == ("darwin", "x86_64")
_READY, _PROGRESS = ".ready", ".progress"
_PIP = ("install", "--no-input", "--disable-pip-version-check", "--progress-bar=off")
_DOWNLOADS = re.compile(r"Downloading (?:\S*/)?([^\s/-]+)-\S+\.(?:whl|tar\.gz) \(([^)]+)\)")
_UNPACKS = "Installing collected packages"
Report = Callable[[str], None]


class InstallationFailed(AgentError):
    """The environment could not be made; the text gives pip's reason."""


@dataclass(frozen=True, slots=True)
class State:
    """`text` continues "search in documents is …"; `reason` is pip's, for operators: it may name their index."""

    kind: Literal["ready", "installing", "missing"]
    text: str
    reason: str = ""


class EmbeddingEnvironment:
    """An environment in `folder` that holds what `requirements` lists, or the one of `python`, an operator's own.

    The folder is locked while it is being made, so that only one process does it; what an interrupted installation
    has left is deleted.
    """

    def __init__(self, python: Path | None = None, folder: Path = FOLDER, requirements: Path = REQUIREMENTS) -> None:
        self.python = python or folder / "bin" / "python"
        self.managed = python is None
        self.possible = not (self.managed and _INTEL_MAC)  # there is no torch for those
        self._folder = folder
        self._requirements = requirements

    def state(self) -> State:
        """Whether it can be used now, and else how far it is or what to do."""
        if self._is_ready():
            return State("ready", "installed")
        if not self.managed:
            return State("missing", "not installed: AGENT_RAG__PYTHON names no Python that is there")
        started, step, failed = self._progress()
        if not self._is_locked():
            return State("missing", f"not installed: run `{COMMAND}`", step if failed else "")
        if not step or failed:  # what an earlier attempt has left
            return State("installing", "being installed: starting")
        seconds = max(0.0, time.time() - started)
        return State("installing", f"being installed: {seconds:.0f} s so far, {step}")

    def install(self, variables: Mapping[str, str], report: Report, torch_index: str = "") -> None:
        """Make it unless it is complete; waits for another process that makes it.

        `torch_index` is an index with torch's CPU builds. pip gets `variables` only.

        Raises:
            InstallationFailed: the folder cannot be written, or pip could not install everything.
        """
        try:
            self._folder.mkdir(exist_ok=True)
            with self._locked(report) as lock:
                if not self._is_ready():
                    self._make(variables, report, torch_index, lock)
        except OSError as error:
            raise InstallationFailed(f"{self._folder} cannot be created: {error.strerror}.") from error

    def _make(self, variables: Mapping[str, str], report: Report, torch_index: str, lock: int) -> None:
        started = time.time()

        def step(text: str) -> None:
            self._note(started, text)
            report(text)

        venv.create(self._folder, clear=True, symlinks=True)
        step("starting")
        try:
            if torch_index:
                lines = self._requirements.read_text(encoding="utf-8").splitlines()
                torch = next(line for line in lines if line.startswith("torch=="))
                self._pip(["--no-deps", "--index-url", torch_index, torch], variables, step, lock)
            self._pip(["--requirement", str(self._requirements)], variables, step, lock)
        except InstallationFailed as error:
            self._note(started, str(error), failed=True)
            raise
        (self._folder / _READY).write_text(self._version(), encoding="ascii")
        (self._folder / _PROGRESS).unlink()

    def _pip(self, arguments: list[str], variables: Mapping[str, str], step: Report, lock: int) -> None:
        # Our own pip works on the other environment, which needs none. It keeps the lock should this process die.
        command = [sys.executable, "-P", "-m", "pip", "--python", str(self.python), *_PIP, *arguments]
        with subprocess.Popen(  # noqa: S603
            command,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            pass_fds=(lock,),
        ) as process:
            assert process.stdout is not None
            try:
                reason = _followed(process.stdout, step)
            except BaseException:
                process.send_signal(signal.SIGINT)  # it ends the pip that it has started for the other environment
                raise
        if process.returncode:
            raise InstallationFailed(reason)

    def _version(self) -> str:
        return sha256(self._requirements.read_bytes()).hexdigest()

    def _is_ready(self) -> bool:
        if not self.python.exists():
            return False
        try:
            return not self.managed or (self._folder / _READY).read_text(encoding="ascii") == self._version()
        except OSError:
            return False

    def _note(self, started: float, step: str, *, failed: bool = False) -> None:
        written = self._folder / f"{_PROGRESS}.new"
        written.write_text(json.dumps((started, step, failed)), encoding="utf-8")
        written.replace(self._folder / _PROGRESS)

    def _progress(self) -> tuple[float, str, bool]:
        try:
            started, step, failed = json.loads((self._folder / _PROGRESS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return 0.0, "", False
        return float(started), str(step), bool(failed)

    def _is_locked(self) -> bool:
        try:
            with _opened(self._folder) as folder:
                fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    @contextmanager
    def _locked(self, report: Report) -> Generator[int]:
        with _opened(self._folder) as folder:
            if self._is_locked():
                report("waiting for another process that installs it")
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield folder


@contextmanager
def _opened(folder: Path) -> Generator[int]:
    number = os.open(folder, os.O_RDONLY)
    try:
        yield number
    finally:
        os.close(number)


def _followed(lines: IO[str], step: Report) -> str:
    reason = last = ""
    for line in lines:
        last = line.strip() or last
        if found := _DOWNLOADS.search(line):
            step(f"downloading {found[1]} ({found[2]})")
        elif line.startswith(_UNPACKS):
            step(f"unpacking {line.count(',') + 1} packages")
        elif line.startswith("ERROR: ") and line.strip() != "ERROR: Exception:":  # its last line says more
            reason = line.removeprefix("ERROR: ").strip()
    return reason or last
