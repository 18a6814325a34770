"""What people, models and prices are assumed to be like. None of it is measured: change it to what you know."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

_P95 = 1.645  # standard deviations


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A distribution by its median and its 95th percentile."""

    median: float
    p95: float

    @property
    def mean(self) -> float:
        return self.median * math.exp(self._sigma**2 / 2)

    def draw(self, chosen: random.Random) -> float:
        return chosen.lognormvariate(math.log(self.median), self._sigma)

    @property
    def _sigma(self) -> float:
        return math.log(self.p95 / self.median) / _P95


@dataclass(frozen=True, slots=True)
class Assumptions:
    """People, their conversations, the model and the tools. Times in seconds, shares of 1."""

    conversations_a_day: float = 1.5
    busy_hour: float = 0.18  # the share of a day's conversations that starts in its busiest hour
    turns: int = 6
    think: LogNormal = LogNormal(25, 180)
    first_token: LogNormal = LogNormal(0.6, 2.5)
    tokens_a_second: LogNormal = LogNormal(60, 144)  # 25 at the 5th percentile
    answer_tokens: LogNormal = LogNormal(150, 600)
    prompt_tokens: LogNormal = LogNormal(1200, 8000)
    # The share of turns by the least and the most calls they make, which are made one after the other.
    calls: Mapping[tuple[int, int], float] = field(
        default_factory=lambda: {(0, 0): 0.55, (1, 1): 0.25, (2, 4): 0.15, (5, 10): 0.05}
    )
    kinds: Mapping[str, float] = field(
        default_factory=lambda: {"files": 0.3, "search": 0.2, "code": 0.2, "rag": 0.2, "other": 0.1}
    )
    call_seconds: Mapping[str, float] = field(
        default_factory=lambda: {"files": 0.3, "search": 1.0, "code": 1.5, "rag": 0.5, "other": 0.5}
    )
    call_tokens: int = 40  # that the model writes for a call
    code_cpu: float = 0.5  # the share of a code's seconds in which it computes
    files: float = 0.12  # the share of conversations that bring a file
    file_kilobytes: LogNormal = LogNormal(300, 6000)
    text_of_a_file: float = 0.1  # the share of a file's bytes that is text
    chunk_characters: int = 450  # of what is new in a chunk of the index
    characters_a_token: float = 4.0
    kernel_idle: float = 1800.0  # seconds that an interpreter keeps a kernel (--idle-minutes)
    kept_days: int = 30  # AGENT_STORE__DAYS
    load: float = 0.6  # of a core or an engine, in the busy hour
    load_without_one: float = 0.9  # of an agent's core while one replica is missing


@dataclass(frozen=True, slots=True)
class Prices:
    """Round figures in dollars, for a month where nothing else is said."""

    core: float = 30.0
    gigabyte: float = 4.0
    stored_gigabyte: float = 0.25
    million_prompt_tokens: float = 1.0
    million_answer_tokens: float = 4.0


@dataclass(frozen=True, slots=True)
class Engines:
    """What one large engine is assumed to carry."""

    postgres_cores: float = 32.0
    postgres_connections: float = 1000.0
    postgres_iops: float = 40_000.0
    postgres_wal: float = 100e6  # bytes a second
    redis_operations: float = 100_000.0  # a second: one process uses one core
    nginx_cores: float = 16.0
