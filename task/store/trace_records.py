"""What a run did and what it cost."""

from collections.abc import Mapping
from dataclasses import field, fields
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from task.conversation.messages import Message, Role, frozen_data
from task.llm.base import ModelOptions, Usage
from task.store.records import RunStatus

CUT = 200  # characters of a result in the documented list of calls
PRICED_TOKENS = 1_000_000
Rating = Literal["up", "down"]
COMMENT_CHARS = 2000  # of what a user writes beside a rating
Price = tuple[float, float]  # of a million tokens: of the prompt and of the answer, in one currency


@frozen_data
class TracedTurn:
    """A message of the run. `size` counts its characters; `content` and `arguments` are None where they are not kept.

    `tool_calls` are flat: `{id, name, arguments}`, the arguments as JSON text. `seconds` is what the model or the tool
    took, before `at`; `usage` the tokens of the request that gave an assistant's turn.
    """

    role: str
    content: Any
    at: float
    size: int = 0
    tool_calls: tuple[Mapping[str, Any], ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    seconds: float | None = None
    usage: Usage | None = None

    @classmethod
    def of(
        cls, message: Message, at: float, seconds: float | None = None, usage: Usage | None = None, *, content: bool
    ) -> Self:
        """The turn of a message, without its texts unless `content`."""
        calls = tuple(
            {"id": call.id, "name": call.name, "arguments": call.function.arguments if content else None}
            for call in message.tool_calls
        )
        kept = message.content if content else None
        made = (message.tool_call_id, message.name) if message.role is Role.TOOL else (None, None)
        return cls(str(message.role), kept, at, len(message.text()), calls, *made, seconds, usage)


@frozen_data
class TracedCall:
    """A tool call; `result` is whole where the trace was read on its own, and cut in listings."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    result: str
    result_length: int
    at: float
    seconds: float
    failed: bool = False


@frozen_data
class TracedDecision:
    """What the gate decided about a call: allowed, denied or deferred.

    `by` names the rule or the grant, `card` is what the user was shown.
    """

    call_id: str
    tool: str
    verdict: str
    at: float
    reason: str = ""
    by: str = ""
    card: Mapping[str, Any] | None = None


@frozen_data
class Trace:
    """What one run did. Times are seconds since 1970; `cost` is None where no price is known.

    `usage` is by model, including models behind tools; "tools" sums what tools used without naming a model. `history`
    counts the messages before the run's own, `asked` the turns that came with the request; without `content` only
    names, sizes, times and tokens are kept. `warnings` list what in the request had no effect, `facts` the ids of
    those that the run got from the user's memory. `question` is the user's
    last message, also where a run continues without a new one. `response_id` is the answer's id in DIAL, `core_traces`
    are the ids of its requests' traces in DIAL Core; `rating` and `comment` are the user's.
    """

    trace_id: str
    owner: str
    door: str
    model: str
    status: str
    started_at: float
    completed_at: float | None = None
    turns: tuple[TracedTurn, ...] = ()
    tool_calls: tuple[TracedCall, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    usage: Mapping[str, Usage] = field(default_factory=dict[str, Usage])
    cost: float | None = None
    limits: tuple[str, ...] = ()
    decisions: tuple[TracedDecision, ...] = ()
    error: str | None = None
    session_id: str | None = None
    run_id: str | None = None
    experiment: str | None = None
    history: int = 0
    content: bool = True
    asked: int = 0
    warnings: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    question: str | None = None
    response_id: str | None = None
    core_traces: tuple[str, ...] = ()
    rating: Rating | None = None
    comment: str | None = None

    @property
    def answer(self) -> str:
        """The last text that the run's model wrote; empty where there is none, or it is not kept."""
        added = self.turns[self.asked :]
        return next((str(turn.content) for turn in reversed(added) if turn.role == "assistant" and turn.content), "")

    @property
    def total_tokens(self) -> int:
        return sum(usage.prompt_tokens + usage.completion_tokens for usage in self.usage.values())

    @property
    def duration_ms(self) -> float | None:
        return None if self.completed_at is None else round((self.completed_at - self.started_at) * 1000, 3)


Named = Annotated[str | None, Field(max_length=200)]  # which the HTTP door checks
At = Annotated[float | None, Field(description="Seconds since 1970.")]


@frozen_data
class TraceFilter:
    """Which traces a listing shows; times are seconds since 1970. Those of `except_door` are left out.

    `tool` is the name of a tool that was called; `text` is part of the question or the answer, in any case.
    """

    session_id: Named = None
    run_id: Named = None
    experiment: Named = None
    status: RunStatus | None = None
    door: Named = None
    since: At = None
    until: At = None
    model: Named = None
    tool: Named = None
    text: Named = None
    rating: Rating | None = None
    except_door: Named = None


def cost_of(model: str, usage: Mapping[str, Usage], prices: Mapping[str, Price]) -> float | None:
    """The cost of one run's tokens by model; None when the run's own `model` has no price.

    Tokens of a model behind a tool cost what that model costs, or what the run's model costs where no price is known.
    """
    own = prices.get(model)
    if own is None:
        return None
    total = 0.0
    for name, used in usage.items():
        of_prompt, of_answer = prices.get(name, own)
        total += used.prompt_tokens * of_prompt + used.completion_tokens * of_answer
    return round(total / PRICED_TOKENS, 9)


def usage_by_model(model: str, own: Usage, of_tools: Mapping[str, Usage]) -> dict[str, Usage]:
    """The tokens of a run by the models that used them."""
    return {model: own, **of_tools} | ({model: own + of_tools[model]} if model in of_tools else {})


def config_of(options: ModelOptions, *, content: bool = True) -> dict[str, Any]:
    """The options of a run as its trace shows them: the documented ones always, others where they are set.

    Without `content` only numbers are shown, and that others were given.
    """
    config = {item.name: getattr(options, item.name) for item in fields(options)}
    extra = config.pop("extra")
    documented = {name: config.pop(name) for name in ("temperature", "top_p", "max_tokens")}
    others = {**{name: value for name, value in config.items() if value is not None}, **extra}
    shown = {name: value if content or isinstance(value, int | float) else "given" for name, value in others.items()}
    return {**documented, **shown}
