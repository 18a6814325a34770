"""Run a GGUF file with llama.cpp's own server until standard input ends; the program that `ModelProcess` starts.

It stands alone: started as a file it loads nothing of the product.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any

KEY_VARIABLE = "EMBEDDED_MODEL_KEY"
READY = "serving at "  # what the one line on standard output begins with; the address follows
BATCH = 64  # tokens worked off without a look at who has left: a request can be cancelled within a second


def main() -> None:
    options = _options()
    sys.path.append(str(options.runtime))
    llama: Any = importlib.import_module("xllamacpp")
    server = llama.Server(_parameters(llama, options))
    print(f"{READY}{server.listening_address}", flush=True)
    sys.stdin.buffer.read()  # ends with the process that started this one, however that ends
    os._exit(0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--runtime", type=Path, required=True)
    parser.add_argument("--context", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    return parser.parse_args()


def _parameters(llama: Any, options: argparse.Namespace) -> Any:
    parameters = llama.CommonParams()
    parameters.model.path = str(options.model)
    parameters.n_ctx = options.context
    parameters.n_parallel = 1
    parameters.n_batch = parameters.n_ubatch = BATCH
    # Conversations that take turns keep what was worked out for them; more of it would exceed the memory announced.
    parameters.cache_ram_mib = 128
    parameters.n_ctx_checkpoints = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = options.threads
    parameters.cpuparams.poll = parameters.cpuparams_batch.poll = 0  # wait asleep: others need the cores
    parameters.port = 0
    parameters.api_keys = [os.environ[KEY_VARIABLE]]
    parameters.cors_origins = ""
    parameters.endpoint_slots = False
    parameters.verbosity = 1
    return parameters


if __name__ == "__main__":
    main()
