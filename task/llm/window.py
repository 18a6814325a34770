"""Make a conversation fit the model it is sent to."""

from __future__ import annotations

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
    complete. If the limit is unknown or the estimate was wrong, it is derived from the provider's refusal.
    """

    limit: Callable[[], Awaitable[int | None]] | None = None
    messages: int | None = None
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
        if not self._known:
            if self._tokens_of(messages) + self._tokens_of_tools(tools) < SMALL:
                return self._within(messages, Budget(self.messages))
            self._tokens, self._known = await self.limit() if self.limit else None, True
        return self._within(messages, self._room(tools))

    def shorter(
        self, messages: list[Message], tools: Sequence[ToolSchema], refusal: ProviderError
    ) -> list[Message] | None:
        """The messages for a retry after a refusal; None: length was not the reason, or nothing can be left out."""
        if refusal.code != CONTEXT_LENGTH:
            return None
        total = sum(map(message_tokens, messages)) + schema_tokens(tools)
        # Refusals name the limit and the request's size, in the provider's tokens.
        numbers = sorted({int(number.replace(",", "")) for number in _NUMBER.findall(refusal.text)})[-2:]
        share = max(0.9 * numbers[0] / numbers[1], 0.05) if len(numbers) == 2 else 0.5
        self._tokens, self._known = int(total * share), True
        result = self._within(messages, self._room(tools))
        return result if sum(map(message_tokens, result)) < sum(map(message_tokens, messages)) else None

    def _room(self, tools: Sequence[ToolSchema]) -> Budget:
        left = None if self._tokens is None else max(self._tokens - self._tokens_of_tools(tools), 1)
        return Budget(self.messages, left)

    def _within(self, messages: list[Message], room: Budget) -> list[Message]:
        if room.allows(len(messages), 0 if room.tokens is None else self._tokens_of(messages)):
            return messages
        if _begins_with(messages, self._source):
            grown = [*self._result, *messages[len(self._source) :]]
            if fits(grown, room):
                return grown
        # Cut deeper than needed: the following steps then only add to the same beginning, which providers cache.
        part = cut(messages, room.share(CUT_TO, 1, NOTE_TOKENS))
        logger.info("%d of %d messages were left out of a model's request", len(part.dropped), len(messages))
        kept = part.with_note(summary(part.dropped, NOTE_TOKENS)) if part.dropped else part.kept
        self._source, self._result = messages, shortened(kept, room)
        return self._result

    def _tokens_of(self, messages: list[Message]) -> int:
        added = messages
        if _begins_with(messages, self._weighed):
            added = messages[len(self._weighed) :]
        else:
            self._weight = 0
        self._weight += sum(map(message_tokens, added))
        self._weighed = messages
        return self._weight

    def _tokens_of_tools(self, tools: Sequence[ToolSchema]) -> int:
        if tools is not self._tools:
            self._tools, self._tools_weight = tools, schema_tokens(tools)
        return self._tools_weight


def _begins_with(messages: Sequence[Message], earlier: Sequence[Message]) -> bool:
    # A run only adds messages to those of its earlier requests.
    known = len(earlier)
    return 0 < known <= len(messages) and messages[known - 1] is earlier[-1]


def schema_tokens(tools: Sequence[ToolSchema]) -> int:
    """Tokens that the tools' schemas take in every request."""
    return int(len(orjson.dumps(list(tools))) / BYTES_PER_TOKEN) if tools else 0
