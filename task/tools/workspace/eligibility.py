"""Which folders may be a workspace."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

_TASK = Path(__file__).parents[2]
PROGRAM = (Path(sys.prefix), _TASK, _TASK.with_name("mcp_servers"))  # what is changed there runs outside the sandbox


def refusal(folder: Path, own: Iterable[Path], *, wide: bool = False) -> str:
    """Why the folder cannot be a workspace; empty if it can.

    `own` are the product's folders and files: their keys and conversations must not be within a model's reach. `wide`
    permits the whole machine and a home.
    """
    real = folder.resolve()
    if not real.is_dir():
        return f"there is no folder {folder}"
    home = Path(os.path.expanduser("~")).resolve()
    if not wide and (real == home or real in home.parents):
        return f"{folder} is wider than a project: it holds your home"
    for place in (path.resolve() for path in own):
        if real == place or place in real.parents:
            return f"{folder} lies in {place}, where the product keeps its own files"
        if real in place.parents and not wide:
            return f"{folder} contains {place}, which is the product's own"
    return ""
