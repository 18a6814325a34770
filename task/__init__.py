"""A general purpose agent for DIAL: one tool loop behind several front doors."""

import os

# aidial-sdk builds its models on pydantic.v1 unless this stands before its first import.
os.environ.setdefault("PYDANTIC_V2", "True")
