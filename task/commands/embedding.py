"""`dial-agent embedding`: install what search in documents needs, in an environment of its own."""

from __future__ import annotations

import os
import sys

from task.embedding.environment import EmbeddingEnvironment, InstallationFailed
from task.settings import Settings, process_environment

NICE = 5  # answers take precedence: the product runs meanwhile


def run(settings: Settings) -> int:
    """Install it unless it is there. 0, or 1 with one sentence."""
    environment = EmbeddingEnvironment(settings.rag.python)
    if not environment.managed:
        print(f"AGENT_RAG__PYTHON is set: {environment.python} is an environment of your own.")
        return 0 if environment.state().kind == "ready" else 1
    if not environment.possible:
        print("There is no torch for Intel Macs. Let AGENT_RAG__PYTHON name an environment of your own.")
        return 1
    os.nice(NICE)
    try:
        environment.install(process_environment(), lambda step: print(step, flush=True), settings.rag.torch_index)
    except InstallationFailed as error:
        print(f"Search in documents is not installed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Stopped. The next `dial-agent embedding` begins again; what was downloaded is kept.")
        return 130
    print("Search in documents is ready.")
    return 0
