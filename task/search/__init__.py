"""Retrieval in documents: the text of files, their chunks and vectors, ranking, and checked answers."""
