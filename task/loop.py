"""The one loop: ask the model, run the tools it asks for, repeat."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """How far one run may go: model requests with tools, seconds per tool and per run, tokens per run."""

    steps: int = 15
    tool_seconds: float = 300
    run_seconds: float = 1500
    run_tokens: int | None = None
