"""`dial-agent embedding`: install what search in documents needs, in an environment of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import monotonic

from task.embedding.environment import EmbeddingEnvironment, InstallationFailed
from task.settings import Settings, process_environment

CPU_BUILDS = "a download of 0.4 GB, 1.1 GB on disk"
GRAPHICS = (
    "a download of 2.9 GB, 5.2 GB on disk, most of it libraries for graphics cards that are not used; with "
    "`make run TORCH_INDEX=…`, the address of an index of torch's CPU builds, 0.4 GB and 1.1 GB"
)
NICE = 5  # answers take precedence: the product runs while this installs
SECONDS = 10  # between lines about the same kind of step: the start's table stays on the screen


def run(settings: Settings) -> int:
    """Install it unless it is there. 0, or 1 with one sentence."""
    if settings.rag.embeddings:
        print("AGENT_RAG__EMBEDDINGS is set: another model makes the vectors, and nothing has to be installed.")
        return 0
    environment = EmbeddingEnvironment(settings.rag.python)
    if not environment.managed:
        print(f"AGENT_RAG__PYTHON is set: {environment.python} is an environment of your own.")
        return 0 if environment.state().kind == "ready" else 1
    if not environment.possible:
        print("There is no torch for Intel Macs. Let AGENT_RAG__PYTHON name an environment of your own.")
        return 1
    if environment.state().kind != "ready":
        with_graphics = sys.platform == "linux" and not settings.rag.torch_index
        print(f"Search in documents: {GRAPHICS if with_graphics else CPU_BUILDS}", flush=True)
    os.nice(NICE)
    try:
        environment.install(process_environment(), sparse(), settings.rag.torch_index)
    except InstallationFailed as error:
        print(f"Search in documents is not installed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. The next `dial-agent embedding` begins again; what was downloaded is kept.")
        return 130
    print("Search in documents is ready.")
    return 0


def sparse() -> Callable[[str], None]:
    """A report that prints the first step of each kind, and others seldom."""
    kind, printed = "", 0.0

    def report(step: str) -> None:
        nonlocal kind, printed
        new, now = step.partition(" ")[0], monotonic()
        if new != kind or now - printed >= SECONDS:
            kind, printed = new, now
            print(step, flush=True)

    return report
