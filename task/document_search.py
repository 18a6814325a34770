"""Put the search in documents together from the settings."""

from __future__ import annotations

import logging
from importlib.util import find_spec

from task.connection import Connection
from task.documents.pool import ReaderPool
from task.embedding.client import Embedder, EmbedderOptions, default_folder
from task.settings import RagSettings, Settings, process_environment
from task.tools.rag.document_cache import DocumentCache
from task.tools.rag.rag_tool import RagOptions, RagTool
from task.tools.rag.shelf import ShelfLimits
from task.tools.rag.store import IndexStore, NoStore, RedisStore

logger = logging.getLogger(__name__)

_LIBRARIES = ("bm25s", "faiss", "langchain_text_splitters", "numpy", "sentence_transformers", "torch")
# What a model that comes from a hub is fetched with, and where it is kept; nothing else of ours is told.
_NEEDED = frozenset({
    "HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HOME", "HTTPS_PROXY", "HTTP_PROXY", "LANG", "NO_PROXY",
    "PATH", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "TMPDIR", "XDG_CACHE_HOME",
})  # fmt: skip


def rag_tools(settings: Settings, connection: Connection | None, readers: ReaderPool) -> list[RagTool]:
    """The search tool, or none where it is switched off or its libraries are not installed."""
    if not settings.rag.enabled:
        return []
    if missing := _missing():
        logger.warning("no search in documents: install the `rag` extra (there is no %s)", ", ".join(missing))
        return []
    cache = DocumentCache.create(settings.rag.cache_seconds, max_bytes=settings.rag.cache_bytes)
    return [
        RagTool(
            settings.dial_endpoint,
            settings.rag.deployment or settings.deployment_name,
            cache,
            files=connection.files if connection else None,
            readers=readers,
            embedder=_embedder(settings),
            model=connection.chat_model if connection else None,
            store=_store(settings.rag),
            options=_options(settings),
        )
    ]


def _missing() -> list[str]:
    return [name for name in _LIBRARIES if find_spec(name) is None]


def _embedder(settings: Settings) -> Embedder:
    environment = {name: value for name, value in process_environment().items() if name in _NEEDED}
    rag, model = settings.rag, settings.embedding_model
    options = EmbedderOptions(model, rag.precision, rag.threads, tuple(sorted(environment.items())))
    return Embedder(rag.process_dir or default_folder(), options)


def _store(rag: RagSettings) -> IndexStore:
    return RedisStore(rag.store_url.get_secret_value()) if rag.store_url else NoStore()


def _options(settings: Settings) -> RagOptions:
    rag = settings.rag
    return RagOptions(
        k=rag.k,
        context_tokens=rag.context_tokens,
        whole_tokens=rag.whole_tokens,
        seconds=rag.seconds,
        counts_with="execute_code" if settings.pyinterpreter_mcp_url else "",
        limits=ShelfLimits(settings.limits.max_download_bytes, rag.max_chunks, rag.cache_seconds),
    )
