"""Run the embedding process: `python -m task.embedding --socket PATH`; ends when its standard input is closed."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from functools import partial
from pathlib import Path

from task.embedding.model import load
from task.embedding.server import listen

_NICE = 5  # answers that stream go before documents that are indexed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--model", default="")
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=0)
    chosen = parser.parse_args()
    os.nice(_NICE)
    loading = partial(load, chosen.model, chosen.precision, chosen.threads)
    asyncio.run(listen(chosen.socket, loading, sys.stdin.fileno(), _say_ready))
    os._exit(0)  # the thread may still be importing torch, for which nobody waits any more


def _say_ready() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
