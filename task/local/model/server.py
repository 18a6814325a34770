"""Run a GGUF file with llama.cpp's own server until standard input ends; the program that `ModelProcess` starts.

Started as a file, it imports nothing of the product. Its arguments are the GGUF file, the folder of the runtime, the
tokens of the context and the number of threads.
"""

import importlib
import os
import sys
from typing import Any

KEY_VARIABLE = "EMBEDDED_MODEL_KEY"
READY = "serving at "  # the one line on standard output begins with this; the address follows
BATCH = 64  # tokens computed between checks for a cancelled request, so that it ends within a second


def main() -> None:
    model, runtime, context, threads = sys.argv[1:]
    sys.path.append(runtime)
    llama: Any = importlib.import_module("xllamacpp")
    parameters = llama.CommonParams()
    parameters.model.path = model
    parameters.n_ctx = int(context)
    parameters.n_parallel = 1
    parameters.n_batch = parameters.n_ubatch = BATCH
    # Alternating conversations keep their computed state; a larger cache would exceed the announced memory.
    parameters.cache_ram_mib = 128
    parameters.n_ctx_checkpoints = 0
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = int(threads)
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
