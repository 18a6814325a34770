"""The folder that holds downloaded weights, and the stamps that say which of them were checked."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from task.errors import AgentError
from task.local_model.catalogue import Weights

MAGIC = b"GGUF"
STATES = (".state", ".new", ".taken")  # whole, in the making, and being read


class WeightsUnavailable(AgentError):
    """Weights that cannot be had or used; the text says why and what would help."""


@dataclass(frozen=True, slots=True)
class WeightStore:
    """Weights below `folder`, which is made when it is first needed.

    A file counts only with its stamp: size, time of change and hash at the moment it was checked.
    """

    folder: Path

    def path(self, weights: Weights) -> Path:
        return self.folder / weights.file_name

    def part(self, weights: Weights) -> Path:
        """The file in the making."""
        return self.folder / f"{weights.file_name}.part"

    def work(self, weights: Weights) -> Path:
        """The folder of the piece in the making."""
        return self.folder / f"{weights.file_name}.work"

    def state(self, name: str, origin: str) -> Path:
        """What the model of this name has worked out beforehand, under the circumstances `origin`."""
        return self.folder / f"{name}-{origin}.state"

    def states(self, name: str) -> list[Path]:
        """What it has worked out, whatever the circumstances were."""
        files = self.folder.iterdir() if self.folder.is_dir() else ()
        return [file for file in files if file.suffix in STATES and file.stem.rpartition("-")[0] == name]

    def found(self, weights: Weights) -> Path | None:
        """The checked file; None when there is none, or it has changed since it was checked."""
        try:
            stamp = json.loads(self._stamp(weights).read_text("utf-8"))
            return self.path(weights) if stamp == self._state(weights) else None
        except (OSError, ValueError):
            return None

    def accept(self, weights: Weights) -> Path:
        """Check the finished `part` and make it the file.

        Raises:
            WeightsUnavailable: it is not the known file; it is deleted.
        """
        part = self.part(weights)
        with part.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        size = part.stat().st_size
        if (size, sha256) != (weights.size, weights.sha256):
            part.unlink()
            raise WeightsUnavailable(
                f"What was downloaded is not {weights.name} ({size:,} bytes, sha256 {sha256[:12]}…; expected "
                f"{weights.size:,} bytes, {weights.sha256[:12]}…). It was deleted and is not used."
            )
        os.replace(part, self.path(weights))
        self._stamp(weights).write_text(json.dumps(self._state(weights)), "utf-8")
        return self.path(weights)

    def done_bytes(self, weights: Weights) -> int:
        """How much of the weights lies here, the piece in the making included."""
        if self.found(weights):
            return weights.size
        return sum(file.stat().st_size for file in (self.part(weights), *self.work(weights).rglob("*")) if _is(file))

    def remove(self, weights: Weights) -> int:
        """Delete everything of these weights; the number of bytes that are free now."""
        freed = 0
        for file in (self.path(weights), self.part(weights), self._stamp(weights), *self.states(weights.name)):
            freed += file.stat().st_size if _is(file) else 0
            file.unlink(missing_ok=True)
        shutil.rmtree(self.work(weights), ignore_errors=True)
        return freed

    @contextmanager
    def lock(self, name: str, *, wait: bool = True) -> Generator[bool]:
        """Hold the right to change what has this name, alone on this machine; False: another has it, without `wait`.

        Raises:
            WeightsUnavailable: the folder cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise WeightsUnavailable(
                f"{self.folder} cannot be written ({error.strerror}); choose a folder with AGENT_LOCAL_MODEL__FOLDER."
            ) from error
        try:
            yield _locked(descriptor, wait)
        finally:
            os.close(descriptor)

    def _stamp(self, weights: Weights) -> Path:
        return self.folder / f"{weights.file_name}.checked"

    def _state(self, weights: Weights) -> dict[str, object]:
        found = self.path(weights).stat()
        return {"size": found.st_size, "changed": found.st_mtime_ns, "sha256": weights.sha256}


def gguf_fault(path: Path) -> str | None:
    """Why a file of the user's own cannot be a model's weights, as a clause; None when it looks like some."""
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return None if start == MAGIC else f"{path} is no GGUF file"


def _locked(descriptor: int, wait: bool) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _is(file: Path) -> bool:
    return file.is_file()
