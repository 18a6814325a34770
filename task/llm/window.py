"""Make a conversation fit the model it is sent to."""

import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import orjson

from task.conversation.messages import Message
from task.conversation.pruning import BYTES_PER_TOKEN, Budget, cut, fits, message_tokens, shortened, summary
from task.errors import ProviderError
from task.llm.base import ToolSchema
from task.llm.failures import CONTEXT_LENGTH

logger = logging.getLogger(__name__)

ANSWER_TOKENS = 4096  # kept free for the answer if a limit covers both
SMALL = 3000  # tokens that every model accepts, so that its limit need not be looked up
NOTE_TOKENS = 400
CUT_TO = 0.75
_NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+|\d{4,}")


@dataclass(slots=True)
class ContextWindow:
    """Keeps one run's requests to one model within `limit` tokens (None: unknown) and `messages` messages (None: any).

    What exceeds the limit is pruned and replaced by a note about what was left out; the conversation itself stays
    complete. If the limit is unknown or the estimate was wrong, it is derived from the provider's refusal. `discarded`
    are the places of the messages that were left out.
    """

    limit: Callable[[], Awaitable[int | None]] | None = None
    messages: int | None = None
    discarded: set[int] = field(init=False, default_factory=set[int])
    _known: bool = field(init=False, default=False)
    _tokens: int | None = field(init=False, default=None)
    _source: Sequence[Message] = field(init=False, default=())
    _result: list[Message] = field(init=False, default_factory=list[Message])
    _weighed: Sequence[Message] = field(init=False, default=())
    _weight: int = field(init=False, default=0)
    _tools: Sequence[ToolSchema] = field(init=False, default=())
    _tools_weight: int = field(init=False, default=0)

    async def fitted(self, messages: list[Message], tools: Sequence[ToolSchema]) -> list[Message]:
        """The messages as they can be sent; the same list if nothing is too long."""
        if tools is not self._tools:
            self._tools, self._tools_weight = tools, schema_tokens(tools)
        known = len(self._weighed) if _begins_with(messages, self._weighed) else 0
        self._weight = (self._weight if known else 0) + _total(messages[known:])
        self._weighed = messages
        if not self._known and self._weight + self._tools_weight >= SMALL:
            self._tokens, self._known = await self.limit() if self.limit else None, True
        return self._within(messages, self._tools_weight, self._weight)

    def shorter(
        self, messages: list[Message], tools: Sequence[ToolSchema], refusal: ProviderError
    ) -> list[Message] | None:
        """The messages for a retry after a refusal; None: length was not the reason, or nothing can be left out."""
        if refusal.code != CONTEXT_LENGTH:
            return None
        weight, tools_weight = _total(messages), schema_tokens(tools)
        # Refusals name the limit and the request's size, in the provider's tokens.
        numbers = sorted({int(number.replace(",", "")) for number in _NUMBER.findall(refusal.text)})[-2:]
        share = max(0.9 * numbers[0] / numbers[1], 0.05) if len(numbers) == 2 else 0.5
        self._tokens, self._known = int((weight + tools_weight) * share), True
        result = self._within(messages, tools_weight, weight)
        return result if _total(result) < weight else None

    def _within(self, messages: list[Message], tools_weight: int, weight: int) -> list[Message]:
        room = Budget(self.messages, None if self._tokens is None else max(self._tokens - tools_weight, 1))
        if room.allows(len(messages), weight):
            return messages
        if _begins_with(messages, self._source):
            grown = [*self._result, *messages[len(self._source) :]]
            if fits(grown, room):
                return grown
        # Cut deeper than needed: the following steps then only add to the same beginning, which providers cache.
        part = cut(messages, room.share(CUT_TO, 1, NOTE_TOKENS))
        self.discarded |= {item.place for item in part.dropped} - {item.place for item in part.kept} - {-1}
        logger.info("%d of %d messages were left out of a model's request", len(part.dropped), len(messages))
        kept = part.with_note(summary(part.dropped, NOTE_TOKENS)) if part.dropped else part.kept
        self._source, self._result = messages, shortened(kept, room)
        return self._result


def _begins_with(messages: Sequence[Message], earlier: Sequence[Message]) -> bool:
    # A run only adds messages to those of its earlier requests.
    known = len(earlier)
    return 0 < known <= len(messages) and messages[known - 1] is earlier[-1]


def _total(messages: Sequence[Message]) -> int:
    return sum(map(message_tokens, messages))


def schema_tokens(tools: Sequence[ToolSchema]) -> int:
    """Tokens that the tools' schemas take in every request."""
    return int(len(orjson.dumps(list(tools))) / BYTES_PER_TOKEN) if tools else 0
