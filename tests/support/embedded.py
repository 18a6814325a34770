"""An embedded model of a script, for local Core."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from task.local.model.process import EmbeddedModel
from task.local.model.weights import WeightStore
from task.processes import Restarts
from tests.support.llama_peer import PROGRAM


def content_of(script: dict[str, Any]) -> bytes:
    """The weights that make the peer play `script`."""
    return b"GGUF" + json.dumps(script).encode()


def embedded(folder: Path, script: dict[str, Any] | None = None, **options: Any) -> EmbeddedModel:
    """A model whose file is in `folder`; without a `script` there is none yet."""
    store = WeightStore(folder / "models")
    store.runtime.mkdir(parents=True, exist_ok=True)
    file = folder / "small-model.gguf"
    if script is not None:
        file.write_bytes(content_of(script))
    quick = {"load_seconds": 10, "appear_seconds": 0.2, "restarts": Restarts(0.05)}
    return replace(EmbeddedModel("small-model", "Small model", store, file=file, program=PROGRAM), **quick | options)
