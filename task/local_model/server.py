"""Run a GGUF file with llama.cpp's own server until standard input ends; the program that `ModelProcess` starts.

It stands alone: started as a file it loads nothing of the product.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from http import HTTPStatus
from http.client import HTTPConnection
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
    take_up(options.state, server.listening_address, os.environ[KEY_VARIABLE])
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


def take_up(state: Path, address: str, key: str) -> None:
    """Take up what an earlier process has worked out; whatever stands against that costs time only.

    llama.cpp aborts on a damaged file. So it is put aside before it is read: the next start then does without.
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
    # Conversations that take turns keep what was worked out for them; more of it would exceed the memory announced.
    parameters.cache_ram_mib = 128
    parameters.n_ctx_checkpoints = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = options.threads
    parameters.cpuparams.poll = parameters.cpuparams_batch.poll = 0  # wait asleep: others need the cores
    parameters.port = 0
    parameters.api_keys = [os.environ[KEY_VARIABLE]]
    parameters.cors_origins = ""
    parameters.endpoint_slots = False
    parameters.slot_save_path = f"{options.state.parent}{os.sep}"
    parameters.verbosity = 1
    return parameters


if __name__ == "__main__":
    main()
