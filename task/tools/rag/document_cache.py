"""The documented place of `DocumentCache`."""

from task.search.shelf import DocumentCache as DocumentCache
