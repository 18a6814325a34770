"""What tokens cost: a table of prices, and the sum of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from task.llm.base import Usage

PER = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost, of the prompt and of the answer, in one currency."""

    prompt: float
    completion: float


def cost_of(usage: Mapping[str, Usage], prices: Mapping[str, Price]) -> float | None:
    """The cost of all tokens; None when a model that was used has no price."""
    if not all(model in prices for model in usage):
        return None
    parts = (
        used.prompt_tokens * prices[model].prompt + used.completion_tokens * prices[model].completion
        for model, used in usage.items()
    )
    return round(sum(parts) / PER, 9)
