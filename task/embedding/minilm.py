"""The packaged model, a BERT with mean pooling, in plain torch: it loads in a quarter of the time its library takes.

sentence-transformers imports most of transformers, scikit-learn and pandas before it can embed a word. The vectors are
the same, which a test checks. Sources: Devlin et al. 2018, BERT; the model card of all-MiniLM-L6-v2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

_EPSILON = 1e-12


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
        from torch.nn.functional import normalize

        encoded = self._tokenizer.encode_batch(list(texts))
        ids = torch.tensor([item.ids for item in encoded])
        mask = torch.tensor([item.attention_mask for item in encoded], dtype=torch.bool)
        with torch.inference_mode():
            hidden = self._embedded(ids)
            for layer in range(self._layers):
                hidden = self._layer(f"encoder.layer.{layer}", hidden, mask[:, None, None, :])
            counted = mask[:, :, None].to(torch.float32)
            pooled = (hidden.float() * counted).sum(1) / counted.sum(1)
            return normalize(pooled, dim=1).numpy()

    def _embedded(self, ids: Tensor) -> Tensor:
        from torch.nn.functional import embedding

        weights = self._weights
        words = embedding(ids, weights["embeddings.word_embeddings.weight"])
        places = weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        kind = weights["embeddings.token_type_embeddings.weight"][0]
        return self._norm("embeddings.LayerNorm", words + places + kind)

    def _layer(self, name: str, hidden: Tensor, mask: Tensor) -> Tensor:
        attended = self._linear(f"{name}.attention.output.dense", self._attention(name, hidden, mask))
        hidden = self._norm(f"{name}.attention.output.LayerNorm", attended + hidden)
        inner = self._linear(f"{name}.intermediate.dense", hidden, gelu=True)
        return self._norm(f"{name}.output.LayerNorm", self._linear(f"{name}.output.dense", inner) + hidden)

    def _attention(self, name: str, hidden: Tensor, mask: Tensor) -> Tensor:
        from torch.nn.functional import scaled_dot_product_attention

        texts, length, width = hidden.shape
        query, key, value = (
            self._linear(f"{name}.attention.self.{part}", hidden).view(texts, length, self._heads, -1).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        found = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return found.transpose(1, 2).reshape(texts, length, width)

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
