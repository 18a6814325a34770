"""What local Core needs to know of the model that it runs itself."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from task.local_model.catalogue import Weights
from task.local_model.prompt import predicted_prefix
from task.local_model.runtime import runtime_folder
from task.local_model.weights import WeightStore

PROGRAM = (sys.executable, str(Path(__file__).with_name("server.py")))


@dataclass(frozen=True, slots=True)
class Patience:
    """How long things may take, in seconds: loading, appearing of the weights, between probes, before a restart."""

    load: float = 180
    appear: float = 10
    probe: float = 10
    first_pause: float = 0.5
    longest_pause: float = 30
    settled: float = 60


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A model of its own `name`: known `weights` in the `store`, or a `file` of the user's.

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
        """The file to load; None while it, or what runs it, is not here."""
        if not runtime_folder(self.store.folder).is_dir():
            return None
        return self.file if self.weights is None else self.store.found(self.weights)

    def arriving(self) -> int | None:
        """How many per cent of the weights are here, while some process downloads them; None: nobody does."""
        if self.weights is None:
            return None
        with self.store.lock(self.weights.name, wait=False) as idle:
            return None if idle else 100 * self.store.done_bytes(self.weights) // self.weights.size

    def state(self, file: Path) -> Path:
        """Where the worked out beginning of conversations is kept; nothing that it depends on shares the name."""
        found = file.stat()
        origin = (runtime_folder(self.store.folder).name, found.st_size, found.st_mtime_ns, self.context)
        digest = hashlib.sha256(f"{origin}\n{predicted_prefix().text()}".encode()).hexdigest()
        return self.store.state(self.name, digest[:16])

    def arguments(self, file: Path) -> list[str]:
        """What the program is started with."""
        threads = self.threads or os.cpu_count() or 1
        return [
            *("--model", str(file), "--runtime", str(runtime_folder(self.store.folder))),
            *("--context", str(self.context), "--threads", str(threads), "--state", str(self.state(file))),
        ]
