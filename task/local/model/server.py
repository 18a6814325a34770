"""Run a GGUF file with llama.cpp's own server until standard input ends; the program that `ModelProcess` starts.

Started as a file, it imports nothing of the product.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from task.local.model.prompt import predicted_prefix
from task.local.model.weights import Weights, WeightStore

KEY_VARIABLE = "EMBEDDED_MODEL_KEY"
READY = "serving at "  # the one line on standard output begins with this; the address follows
BATCH = 64  # tokens computed between checks for a cancelled request, so that it ends within a second
PROGRAM = (sys.executable, str(Path(__file__).with_name("server.py")))


def main() -> None:
    options = _options()
    sys.path.append(str(options.runtime))
    llama: Any = importlib.import_module("xllamacpp")
    server = llama.Server(_parameters(llama, options))
    restore_state(options.state, server.listening_address, os.environ[KEY_VARIABLE])
    print(f"{READY}{server.listening_address}", flush=True)
    sys.stdin.buffer.read()  # ends with the process that started this one, however that ends
    os._exit(0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--runtime", type=Path, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--state", type=Path, required=True)
    return parser.parse_args()


def restore_state(state: Path, address: str, key: str) -> None:
    """Restore the state that an earlier process has saved; if that fails it costs only time.

    llama.cpp aborts on a damaged file. So it is renamed before it is read: the next start then ignores it.
    """
    taken = state.with_suffix(".taken")
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection = HTTPConnection(address.removeprefix("http://"), timeout=20)
    try:
        state.replace(taken)
        connection.request("POST", "/slots/0?action=restore", json.dumps({"filename": taken.name}), headers)
        if connection.getresponse().status == HTTPStatus.OK:
            taken.replace(state)
    except OSError:
        return
    finally:
        connection.close()


def _parameters(llama: Any, options: argparse.Namespace) -> Any:
    parameters = llama.CommonParams()
    parameters.model.path = str(options.model)
    parameters.n_ctx = options.context
    parameters.n_parallel = 1
    parameters.n_batch = parameters.n_ubatch = BATCH
    # Alternating conversations keep their computed state; a larger cache would exceed the announced memory.
    parameters.cache_ram_mib = 128
    parameters.n_ctx_checkpoints = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = options.threads
    parameters.cpuparams.poll = parameters.cpuparams_batch.poll = 0  # sleep while waiting: others need the cores
    parameters.port = 0
    parameters.api_keys = [os.environ[KEY_VARIABLE]]
    parameters.cors_origins = ""
    parameters.endpoint_slots = False
    parameters.slot_save_path = f"{options.state.parent}{os.sep}"
    parameters.verbosity = 1
    return parameters


if __name__ == "__main__":
    main()


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
