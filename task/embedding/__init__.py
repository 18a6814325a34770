"""The embedding model, which makes the vectors of texts, and its weights."""
