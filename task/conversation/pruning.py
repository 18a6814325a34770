"""Shorten a conversation to a budget and keep it valid: whole turns are dropped, calls keep their results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from task.conversation.messages import INSTRUCTIONS, Message, Role, ToolCall, assistant, frozen_data, unanswered

# Common tokenizers need one token for about four bytes of prose. A fifth fewer leaves room for code, tables and scripts
# that need more: an overestimated conversation is shortened a little early, an underestimated one is refused.
BYTES_PER_TOKEN = 3.2
MESSAGE_TOKENS = 4  # role and separators
CALL_TOKENS = 8
PICTURE_TOKENS = 1600  # what providers charge for a screenshot; its data is not text

TokenCounter = Callable[[Message], int]
Summariser = Callable[[Sequence[Message], int], str]  # messages and tokens -> their summary
SHORTENED = "\n[... shortened to fit the model's context; call the tool again if the rest is needed ...]\n"
_KEPT_CHARS = (8_000, 2_000, 400)
HEADER = "[Summary of earlier messages, which were left out to fit the model's context]"
EARLIER = "- (more came before)"
_LINE = 240

logger = logging.getLogger(__name__)


def text_tokens(text: str) -> int:
    """Estimated tokens of a text: its UTF-8 bytes by 3.2, rounded up."""
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return -int(-size // BYTES_PER_TOKEN)


def message_tokens(message: Message) -> int:
    """Estimated tokens of a message with its calls and pictures."""
    total, content = MESSAGE_TOKENS, message.content
    if isinstance(content, str):
        total += -int(-len(content) // BYTES_PER_TOKEN) if content.isascii() else text_tokens(content)
    else:
        for part in content or ():
            total += text_tokens(str(part.get("text", ""))) if part.get("type") == "text" else PICTURE_TOKENS
    for call in message.tool_calls:
        total += CALL_TOKENS + text_tokens(call.function.name) + text_tokens(call.function.arguments)
    return total + text_tokens(message.reasoning_content) if message.reasoning_content else total


@frozen_data
class Budget:
    """How much of a conversation may remain; None is no limit."""

    messages: int | None = None
    tokens: int | None = None

    def share(self, part: float, messages: int = 0, tokens: int = 0) -> Budget:
        """This part of the budget, less so many messages and tokens."""
        return Budget(
            None if self.messages is None else max(int(self.messages * part) - messages, 1),
            None if self.tokens is None else max(int(self.tokens * part) - tokens, 1),
        )

    def allows(self, messages: int, tokens: int) -> bool:
        return (self.messages is None or messages <= self.messages) and (self.tokens is None or tokens <= self.tokens)


@dataclass(frozen=True, slots=True)
class Cut:
    """A conversation in two parts, both in order; the dropped part was at `place` of `kept`."""

    kept: tuple[Message, ...]
    dropped: tuple[Message, ...]
    place: int

    def with_note(self, note: Message) -> list[Message]:
        """What is kept, with `note` in place of the rest."""
        return [*self.kept[: self.place], note, *self.kept[self.place :]]


def pruned(messages: Sequence[Message], budget: Budget, *, count: TokenCounter = message_tokens) -> list[Message]:
    """The conversation within `budget`: what `cut` keeps, with long tool results shortened if that is not enough.

    A valid conversation stays valid. It may still exceed the budget if the user's own words do.
    """
    return shortened(cut(messages, budget, count=count).kept, budget, count=count)


def marked(kept: Sequence[Message], dropped: Sequence[Message]) -> list[Message]:
    """What is kept; if any text from outside may have been dropped, the first message that can say so does."""
    lost = any(
        message.unsourced or message.role is Role.TOOL or isinstance(message.content, list) for message in dropped
    )
    places = (place for place, message in enumerate(kept) if message.role not in (*INSTRUCTIONS, Role.TOOL))
    first = next(places, 0) if lost else -1
    return [replace(message, unsourced=True) if place == first else message for place, message in enumerate(kept)]


def fits(messages: Sequence[Message], budget: Budget, count: TokenCounter = message_tokens) -> bool:
    """Whether the messages are within the budget."""
    total = 0 if budget.tokens is None else sum(map(count, messages))
    return budget.allows(len(messages), total)


def cut(
    messages: Sequence[Message], budget: Budget, *, keep_system: bool = True, count: TokenCounter = message_tokens
) -> Cut:
    """Choose what to keep: the last question with its newest step, the user's first goal, system messages, the newest
    steps, and before them as many whole turns as fit, newest first. Of system messages, the first is always kept.
    """
    if fits(messages, budget, count):
        return Cut(tuple(messages), (), len(messages))
    # What can only be kept or dropped together: calls with their results, any other message alone.
    units: list[list[Message]] = []
    for message in messages:
        if message.role is Role.TOOL and units and units[-1][0].role is Role.ASSISTANT:
            units[-1].append(message)
        else:
            units.append([message])
    tokens = [0 if budget.tokens is None else sum(map(count, unit)) for unit in units]
    needed, wanted = _by_importance([unit[0] for unit in units], keep_system=keep_system)
    stays = set(needed)
    length, size = sum(len(units[place]) for place in stays), sum(tokens[place] for place in stays)
    for group in wanted:
        for places in group:
            new = set(places) - stays
            longer = length + sum(len(units[place]) for place in new)
            larger = size + sum(tokens[place] for place in new)
            if not budget.allows(longer, larger):
                break
            stays |= new
            length, size = longer, larger
    dropped = [place for place in range(len(units)) if place not in stays]
    return Cut(
        tuple(chain.from_iterable(units[place] for place in sorted(stays))),
        tuple(chain.from_iterable(units[place] for place in dropped)),
        sum(map(len, units[: dropped[0]])) if dropped else len(messages),
    )


def _by_importance(heads: Sequence[Message], *, keep_system: bool) -> tuple[list[int], list[list[list[int]]]]:
    # By the units' first messages: the places that stay in any case, and groups of others, of each of which those stay
    # that fit.
    places = range(len(heads))
    systems = [place for place in places if keep_system and heads[place].role in INSTRUCTIONS]
    others = [place for place in places if not keep_system or heads[place].role not in INSTRUCTIONS]
    users = [place for place in others if heads[place].role is Role.USER]
    question, turns = users[-1] if users else 0, list[list[int]]()
    for place in others:
        if place < question:
            if heads[place].role is Role.USER or not turns:
                turns.append([])
            turns[-1].append(place)
    # The model has not seen the results of the last step yet: without them it would repeat the calls.
    unseen = others[-1:] if others and heads[others[-1]].tool_calls else []
    steps = [[place] for place in reversed(others) if place > question]
    return [*systems[:1], *users[-1:], *unseen], [
        [users[:1]],
        [[place] for place in reversed(systems)],
        [*steps, *reversed(turns)],
    ]


def shortened(
    messages: Sequence[Message],
    budget: Budget,
    count: TokenCounter = message_tokens,
    kept_chars: Sequence[int] = _KEPT_CHARS,
    note: str = SHORTENED,
) -> list[Message]:
    """The messages with their longest tool results and arguments cut to head and tail until the tokens fit, if that is
    possible. Calls at the end that have no result yet stay as they are.

    `kept_chars` is how much of each remains around `note`, tried in turn.
    """
    result = list(messages)
    if budget.tokens is None:
        return result
    sizes = [count(message) for message in result]
    total, waiting = sum(sizes), unanswered(result)
    for keep in kept_chars:
        for place in sorted(range(len(result)), key=lambda place: -sizes[place]):
            if total <= budget.tokens:
                return result
            brief = _brief(result[place], keep, note, waiting)
            if brief is not result[place]:
                result[place] = brief
                total += count(brief) - sizes[place]
                sizes[place] = count(brief)
    return result


def _brief(message: Message, keep: int, note: str, waiting: Sequence[ToolCall]) -> Message:
    longest = keep + len(note)

    def brief(text: str) -> str:
        return text[: keep // 2] + note + text[-keep // 2 :] if len(text) > longest else text

    if message.role is Role.TOOL and len(text := message.text()) > longest:
        return replace(message, content=brief(text))
    if all(len(call.function.arguments) <= longest or call in waiting for call in message.tool_calls):
        return message
    calls = (call if call in waiting else call.with_texts(brief) for call in message.tool_calls)
    return replace(message, tool_calls=tuple(calls))


def summary(dropped: Sequence[Message], tokens: int, summarise: Summariser | None = None) -> Message:
    """A summary of what was dropped, written by `summarise` or, if that is missing or fails, by `digest`.

    It is an assistant message: its content may come from a web page, and must not have the authority of user or system.
    """
    text = ""
    if summarise is not None:
        try:
            text = summarise(dropped, tokens).strip()
        except Exception:  # whatever a summary model does, the conversation continues
            logger.warning("the summary of the conversation failed", exc_info=True)
    text = text or digest(dropped, tokens)
    if text_tokens(text) > tokens:
        text = text.encode()[: int(tokens * BYTES_PER_TOKEN)].decode(errors="ignore")
    return replace(assistant(f"{HEADER}\n{text}"), scrub_pii=any(message.scrub_pii for message in dropped))


def digest(dropped: Sequence[Message], tokens: int) -> str:
    """What the user asked, what was called and how the answers began, line by line; the newest lines if not all fit.

    Deterministic; results of tools are not repeated.
    """
    lines: list[str] = []
    for message in dropped:
        text = " ".join(message.text().split())
        if message.role is Role.ASSISTANT and text.startswith(HEADER):
            lines += message.text().splitlines()[1:]
        elif text and message.role in (Role.USER, Role.ASSISTANT):
            shown = text if len(text) <= _LINE else f"{text[: _LINE - 2]} …"
            lines.append(f"- The {message.role.value}: {shown}")
        if message.tool_calls:
            lines.append(f"- Tools called: {', '.join(call.name for call in message.tool_calls)}")
    left = tokens - text_tokens(EARLIER)
    for place in range(len(lines) - 1, -1, -1):
        left -= text_tokens(lines[place]) + 1
        if left < 0:
            return "\n".join([EARLIER, *lines[place + 1 :]])
    return "\n".join(lines)
