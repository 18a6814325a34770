"""From daily users to replicas, engines and a price: the busy hour's mean load, and what carries it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from scripts.capacity.assumptions import Assumptions, Engines, Prices
from scripts.capacity.costs import Cost, Costs
from scripts.capacity.simulation import Simulated, cost_of, simulate
from scripts.capacity.workload import Turn, busy_rate, crowd, sample
from task.store.database import CONNECTIONS

SAMPLE, SEED = 4000, 1  # conversations
QUEUE_SECONDS = 30.0
DAYS = 30  # of a month
GIGA, PAGE = 1e9, 8192


@dataclass(frozen=True, slots=True)
class Typical:
    """The mean turn of a sample; `kilobytes` are those of the prompt of each of its requests to the model."""

    cost: Cost
    seconds: float
    words: float
    calls: float
    kilobytes: float
    code: float  # the share of turns with such a call


@dataclass(frozen=True, slots=True)
class Sizing:
    """What so many daily users need in the busy hour: rates per second, memory and storage in GB, prices a month."""

    users: float
    turns: float
    running: float
    words: float
    agent_cores: float
    replicas: int
    agent_memory: float
    connections: int
    statements: float
    commits: float
    iops: float
    wal: float
    postgres_cores: float
    stored: float
    nginx_cores: float
    redis: float
    redis_memory: float
    kernels: float
    code_cores: float
    kernel_memory: float
    index_cores: float
    price: float
    model_price: float


@dataclass(frozen=True)
class Model:
    """The measured costs of one door under the assumptions."""

    costs: Costs
    door: str
    assumed: Assumptions = field(default_factory=Assumptions)
    prices: Prices = field(default_factory=Prices)

    def sizing(self, users: float) -> Sizing:
        assumed, other, typical = self.assumed, self.costs.other, self.typical
        conversations = busy_rate(assumed, users)
        rate = conversations * assumed.turns
        spent = typical.cost * rate
        usual, alone = (most - self.costs.idle.agent for most in (assumed.load, assumed.load_without_one))
        replicas = max(math.ceil(spent.agent / usual), 1 + math.ceil(spent.agent / alone))
        everything = spent + self.costs.idle * replicas
        running = rate * typical.seconds
        share = {kind: rate * typical.calls * part for kind, part in assumed.kinds.items()}
        documents = conversations * assumed.files
        chunks = assumed.file_kilobytes.mean * 1e3 * assumed.text_of_a_file / assumed.chunk_characters
        redis = documents * other["index_redis"] + share["rag"] * other["question_redis"]
        coding = 1 - (1 - typical.code) ** assumed.turns  # the share of conversations that get a kernel
        lasts = assumed.kernel_idle + assumed.turns * (typical.seconds + assumed.think.mean) / 2
        kernels = conversations * coding * lasts
        code = (
            share["code"] * (other["code_call"] + assumed.call_seconds["code"] * assumed.code_cpu)
            + conversations * coding * other["kernel"]
        )
        index = documents * chunks * (other["index_chunk"] + other["embedding_chunk"])
        index += share["rag"] * (other["question"] + other["question_embedding"])
        day = users * assumed.conversations_a_day
        stored = day * assumed.turns * typical.cost.size * assumed.kept_days / GIGA
        agent_memory = (replicas * other["agent_memory"] + running * other["run_memory"]) / GIGA
        redis_memory = day * assumed.files * chunks * other["index_chunk_memory"] / GIGA
        kernel_memory = kernels * other["kernel_memory"] / GIGA
        cores = replicas + (everything.postgres + everything.nginx + code + index) / assumed.load
        prices = self.prices
        price = cores * prices.core + stored * prices.stored_gigabyte
        price += (agent_memory + redis_memory + kernel_memory) * prices.gigabyte
        asked = typical.kilobytes * 1e3 / assumed.characters_a_token * (1 + typical.calls)
        written = typical.words + typical.calls * assumed.call_tokens
        tokens = asked * prices.million_prompt_tokens + written * prices.million_answer_tokens
        return Sizing(
            users, rate, running, rate * typical.words, everything.agent, replicas, agent_memory,
            replicas * CONNECTIONS, everything.statements, everything.commits,
            everything.commits + everything.wal / PAGE, everything.wal, everything.postgres, stored, everything.nginx,
            redis, redis_memory, kernels, code, kernel_memory, index, price, day * assumed.turns * DAYS * tokens / 1e6,
        )  # fmt: skip

    def queueing(self, load: float) -> Simulated:
        """One replica whose core works for this share of the time."""
        rate = load / self.typical.cost.agent
        found = crowd(self._sample, rate, QUEUE_SECONDS, SEED)
        return simulate(found, self.costs.doors[self.door], self.costs.idle, 1, QUEUE_SECONDS)

    def saturates(self, limit: float, need: Callable[[Sizing], float]) -> float:
        """The daily users with whom an engine that carries `limit` has the load that is assumed."""
        most = 1e6
        return most * limit * self.assumed.load / need(self.sizing(most))

    @cached_property
    def _sample(self) -> list[Turn]:
        return sample(self.assumed, SAMPLE, SEED)

    @cached_property
    def typical(self) -> Typical:
        known, costs = self._sample, self.costs.doors[self.door]
        requests = sum(1 + len(turn.calls) for turn in known)
        count = len(known)
        return Typical(
            cost_of(known, costs) / count,
            sum(turn.seconds for turn in known) / count,
            sum(turn.words for turn in known) / count,
            requests / count - 1,
            sum(turn.prompt_kilobytes * (1 + len(turn.calls)) for turn in known) / requests,
            sum(any(call.kind == "code" for call in turn.calls) for turn in known) / count,
        )


ENGINES: dict[str, tuple[Callable[[Engines], float], Callable[[Sizing], float]]] = {
    "PostgreSQL, cores": (lambda most: most.postgres_cores, lambda need: need.postgres_cores),
    "PostgreSQL, I/O operations": (lambda most: most.postgres_iops, lambda need: need.iops),
    "PostgreSQL, bytes of WAL": (lambda most: most.postgres_wal, lambda need: need.wal),
    "PostgreSQL, connections": (lambda most: most.postgres_connections, lambda need: float(need.connections)),
    "Redis, operations": (lambda most: most.redis_operations, lambda need: need.redis),
    "nginx, cores": (lambda most: most.nginx_cores, lambda need: need.nginx_cores),
}
