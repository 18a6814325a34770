"""Load the embedding model, in the precision that is fastest here; happens in the embedding process only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from task.embedding.weights import EmbeddingUnavailable, check, packaged_folder

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


class Encoder(Protocol):
    """A model that is ready; `precision` is what it computes in, `at_once` in how many threads it may encode."""

    @property
    def precision(self) -> str: ...

    @property
    def at_once(self) -> int: ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One normalised row for each text."""
        ...


@dataclass(frozen=True, slots=True)
class SentenceModel:
    """Any model of sentence-transformers, from a folder or a model hub."""

    model: Any
    precision: str
    at_once: int = 1  # its tokenizer cannot be used by several threads

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        from torch.nn.functional import normalize

        found = self.model.encode(list(texts), batch_size=len(texts), convert_to_tensor=True, show_progress_bar=False)
        return normalize(found.float(), dim=1).numpy()


def load(model: str = "", precision: Precision = "auto", threads: int = 0) -> Encoder:
    """The packaged model, or the one that `model` names; `threads` 0: as many as the machine has cores.

    Raises:
        EmbeddingUnavailable: the package or the folder is missing, or one of its files is not the known one.
        OSError, ValueError, ImportError: what `model` names is not there, or is no such model.
    """
    if not model:
        folder = packaged_folder()
        check(folder)
        return _fastest(_packaged(folder, threads), precision)
    if Path(model).is_absolute() and not Path(model).is_dir():  # what is no folder would be taken for a name on a hub
        raise EmbeddingUnavailable(f"There is no folder {model} with an embedding model. Check EMBEDDING_MODEL.")
    return _fastest(_named(model, threads), precision)


def _fastest(loaded: Callable[[str], Encoder], precision: Precision) -> Encoder:
    if precision != "auto" or not has_bfloat16():
        return loaded("float32" if precision == "auto" else precision)
    half, full = loaded("bfloat16"), loaded("float32")
    agreement = (half.encode(_SAMPLE) * full.encode(_SAMPLE)).sum(axis=1).min()
    return half if agreement >= AGREEMENT else full


def _packaged(folder: Path, threads: int) -> Callable[[str], Encoder]:
    """A batch in each thread: nothing waits for the others after every step, as threads that share a batch do."""
    import torch

    from task.embedding.minilm import MiniLM

    at_once = threads or torch.get_num_threads()
    torch.set_num_threads(1)
    return lambda precision: MiniLM(folder, precision, at_once)


def _named(model: str, threads: int) -> Callable[[str], Encoder]:
    import torch
    from sentence_transformers import SentenceTransformer

    if threads:
        torch.set_num_threads(threads)

    def loaded(precision: str) -> Encoder:
        found = SentenceTransformer(model, device="cpu")
        return SentenceModel(found.to(getattr(torch, precision)), precision)

    return loaded


def has_bfloat16(processor: Path = _PROCESSOR) -> bool:
    """Whether this processor multiplies bfloat16 in hardware."""
    try:
        lines = processor.read_text(encoding="ascii", errors="ignore").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not _FLAGS.isdisjoint(flags.partition(":")[2].split())
