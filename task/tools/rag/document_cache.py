"""The documented place of `DocumentCache`."""

from task.search.document_cache import DocumentCache as DocumentCache
