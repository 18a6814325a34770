"""Run a GGUF file with llama.cpp's own server until standard input ends; the program that `ModelProcess` starts.

Started as a file, it imports nothing of the product.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path
from typing import Any

KEY_VARIABLE = "EMBEDDED_MODEL_KEY"
READY = "serving at "  # the one line on standard output begins with this; the address follows
BATCH = 64  # tokens computed between checks for a cancelled request, so that it ends within a second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for option, kind in {"model": Path, "runtime": Path, "context": int, "threads": int}.items():
        parser.add_argument(f"--{option}", type=kind, required=True)
    options = parser.parse_args()
    sys.path.append(str(options.runtime))
    llama: Any = importlib.import_module("xllamacpp")
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
    parameters.verbosity = 1
    server = llama.Server(parameters)
    print(f"{READY}{server.listening_address}", flush=True)
    sys.stdin.buffer.read()  # ends with the process that started this one, however that ends
    os._exit(0)


if __name__ == "__main__":
    main()
