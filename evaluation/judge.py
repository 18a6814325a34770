"""A judge without a model: answers with the sentence that fits the question best, or that there is none.

It replaces the deployment so that the figures depend on the search alone and repeat exactly. Its rules are simple: a
question's words are weighted by how rare they are in the document, an identifier in the question must be found, and
the share of the weight that the best passage holds, plus the similarity of the best chunk, must reach a limit.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from task.search.answers import FUNCTION_WORDS, NOT_FOUND, statements
from task.search.passages import Passage
from task.search.ranking import tokens

LIMIT = 1.0
_STEM_CHARS = 5
_NUMBER_BONUS = 0.3
_ASKS_NUMBER = re.compile(
    r"\b(how (many|much|long|high|large|loud|quickly|fast)|price|cost|fee|limit|rate|when|wie viel|wann|combien|quelle "
    r"heure|cuánt|cuándo|сколько|когда|скільки|коли|ile|kiedy|quanto|che ora|quando|revenue|result)",
    re.IGNORECASE,
)
_ASKING = """
am any be can does do get happen happens long many may much must need needs should take tell use what whose high
large often quickly soon someone somebody anybody there we us me my when where why how which who wie viel wann wo
darf ich ist combien où quel quelle heure cuánto cuántas cuándo dónde сколько когда где какой скільки коли де який
яка якого ile kiedy jaka jaki jest quanto che ora quando onde está
"""
_QUESTION_WORDS = frozenset(_ASKING.split())


@dataclass(frozen=True, slots=True)
class Rarity:
    """How rare each word of one document is."""

    chunks: int
    counts: Counter[str]

    @classmethod
    def of(cls, texts: Sequence[str]) -> Self:
        return cls(len(texts), Counter(stem for text in texts for stem in set(_stems(text))))

    def weight(self, stem: str) -> float:
        return math.log(1 + (self.chunks + 0.5) / (self.counts[stem] + 0.5))


@dataclass(frozen=True, slots=True)
class Judge:
    """Answers from passages; coverage and similarity together, at most 2, must reach `limit`."""

    rarity: Rarity
    limit: float = LIMIT

    def answer(self, question: str, passages: Sequence[Passage], similarity: float, *, miscopy: bool = False) -> str:
        """The answer as a model would write it, with marker and quote; `miscopy` spoils the quote on purpose."""
        if not passages or self.confidence(question, passages, similarity) < self.limit:
            return NOT_FOUND
        passage, sentence = self._best_sentence(question, passages)
        quote = _miscopied(sentence) if miscopy else sentence
        return f'{sentence} [{passage.number}]\n\nQuotes:\n[{passage.number}] "{quote}"'

    def confidence(self, question: str, passages: Sequence[Passage], similarity: float) -> float:
        """Coverage of the question by its best passage, 0 to 1, plus the similarity; 0 without its identifiers."""
        wanted = _wanted(question)
        held = {stem for passage in passages for stem in _stems(_read(passage))}
        if any(stem not in held for stem in wanted if any(map(str.isdigit, stem))):
            return 0.0
        return max((self._coverage(wanted, _read(passage)) for passage in passages), default=0.0) + similarity

    def _best_sentence(self, question: str, passages: Sequence[Passage]) -> tuple[Passage, str]:
        wanted = _wanted(question)
        found = [(passage, sentence) for passage in passages for sentence in _sentences(passage)]

        def fit(item: tuple[Passage, str]) -> tuple[float, int]:
            passage, sentence = item
            own = self._coverage(wanted, sentence) + _NUMBER_BONUS * _gives_number(question, sentence)
            return own + self._coverage(wanted, _read(passage)), -passage.number

        return max(found, key=fit)

    def _coverage(self, wanted: Iterable[str], text: str) -> float:
        held = set(_stems(text))
        weights = {stem: self.rarity.weight(stem) for stem in wanted}
        total = sum(weights.values())
        return sum(weight for stem, weight in weights.items() if stem in held) / total if total else 0.0


def _sentences(passage: Passage) -> list[str]:
    """The passage's sentences and rows without headings, all of its lines where there is nothing else."""
    found = [sentence.strip() for sentence in statements(passage.source) if any(map(str.isalnum, sentence))]
    return [sentence for sentence in found if sentence[-1] in ".!?…|"] or found


def _gives_number(question: str, sentence: str) -> bool:
    return bool(_ASKS_NUMBER.search(question)) and any(map(str.isdigit, sentence))


def _read(passage: Passage) -> str:
    return "\n".join((*passage.headings, passage.text))


def _wanted(question: str) -> list[str]:
    words = [token for token in tokens(question) if token not in FUNCTION_WORDS and token not in _QUESTION_WORDS]
    return list(dict.fromkeys(token[:_STEM_CHARS] if token.isalpha() else token for token in words))


def _stems(text: str) -> list[str]:
    return [token[:_STEM_CHARS] if token.isalpha() else token for token in tokens(text)]


def _miscopied(sentence: str) -> str:
    words = sentence.split()
    middle = len(words) // 2
    return " ".join((*words[:middle], "reportedly", *words[middle:]))
