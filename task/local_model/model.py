"""The model that local Core runs itself: its file, its program and their parameters."""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

from task.local_model.prompt import predicted_prefix
from task.local_model.weights import Weights, WeightStore

PROGRAM = (sys.executable, str(Path(__file__).with_name("server.py")))


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
