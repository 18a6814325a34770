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

    def of(self, usage: Usage) -> float:
        """What these tokens cost."""
        return (usage.prompt_tokens * self.prompt + usage.completion_tokens * self.completion) / PER


def cost_of(model: str, usage: Mapping[str, Usage], prices: Mapping[str, Price]) -> float | None:
    """The cost of one run's tokens by model; None when the run's own `model` has no price.

    Tokens of a model behind a tool cost what that model costs, or what the run's costs where no price is known.
    """
    own = prices.get(model)
    if own is None:
        return None
    return round(sum(prices.get(name, own).of(used) for name, used in usage.items()), 9)
