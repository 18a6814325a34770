"""What tokens cost: a table of prices, and the sum of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from task.llm.base import Usage

PER = 1_000_000
TOOLS = "tools"  # tokens of models behind tools; they are counted at the price of the run's own model


@dataclass(frozen=True, slots=True)
class Price:
    """What a million tokens cost, of the prompt and of the answer, in one currency."""

    prompt: float
    completion: float


def cost_of(usage: Mapping[str, Usage], prices: Mapping[str, Price]) -> float | None:
    """The cost of one run's tokens; None when its model has no price."""
    price = next((prices[model] for model in usage if model in prices), None)
    if price is None:
        return None
    spent = sum(
        used.prompt_tokens * price.prompt + used.completion_tokens * price.completion for used in usage.values()
    )
    return round(spent / PER, 9)
