"""The embedding model itself; lives in the embedding process only, where torch is imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Precision = Literal["auto", "float32", "bfloat16"]
AGREEMENT = 0.999  # the least cosine between a vector in bfloat16 and the same in float32
# Linux names what the processor can do; torch computes in bfloat16 elsewhere too, but slower than in float32.
_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_PROCESSOR = Path("/proc/cpuinfo")
_SAMPLE = (
    "Wash the tray in warm soapy water.",
    "| Date | Category | Sales |\n| 2025-10-05 | A | 1700 |",
    "The tenant gives notice three months before the term ends, in writing. " * 4,
    "Температура от 20 до 25 °C.",
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that is ready, and the precision it computes in."""

    model: Any
    precision: str

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One normalised row for each text."""
        import torch

        vectors = self.model.encode(
            list(texts), batch_size=max(len(texts), 1), convert_to_tensor=True, show_progress_bar=False
        ).float()
        return torch.nn.functional.normalize(vectors, dim=1).numpy()


def load(folder: str, precision: Precision = "auto", threads: int = 0) -> Loaded:
    """The model of that folder, or of that name on a model hub; `threads` 0: as many as the machine has cores.

    Raises:
        OSError, ValueError, ImportError: it is not there, or is no such model.
    """
    import torch
    from sentence_transformers import SentenceTransformer

    if threads:
        torch.set_num_threads(threads)
    full = Loaded(SentenceTransformer(folder, device="cpu"), "float32")
    if precision == "float32" or (precision == "auto" and not has_bfloat16()):
        return full
    expected = full.encode(_SAMPLE)
    half = Loaded(full.model.to(torch.bfloat16), "bfloat16")
    agrees = (expected * half.encode(_SAMPLE)).sum(axis=1).min() >= AGREEMENT
    if precision == "bfloat16" or agrees:
        return half
    return Loaded(SentenceTransformer(folder, device="cpu"), "float32")


def has_bfloat16(processor: Path = _PROCESSOR) -> bool:
    """Whether this processor multiplies bfloat16 in hardware."""
    try:
        lines = processor.read_text(encoding="ascii", errors="ignore").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not _FLAGS.isdisjoint(flags.partition(":")[2].split())
