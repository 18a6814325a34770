"""Small helpers that the specification names."""
