"""The figures as Markdown, without the text of any question unless requested."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from evaluation.corpus import MULTILINGUAL, UNANSWERABLE, Claim
from evaluation.measures import Figure, difference, figure, share
from evaluation.run import K, Mode, Outcome

NAMES: Mapping[Mode, str] = {"hybrid": "hybrid", "dense": "dense only", "lexical": "BM25 only"}
Outcomes = Mapping[Mode, Sequence[Outcome]]


def report(half: str, found: Outcomes, claims: Sequence[Claim], flags: Sequence[bool]) -> str:
    """All tables of one half."""
    return "\n\n".join(
        (f"## {half.capitalize()} half", _searching(found), _answering(found["hybrid"]), _support(claims, flags))
    )


def misses(outcomes: Iterable[Outcome]) -> str:
    """The questions whose answer was not among the first chunks, or that were answered or refused wrongly."""
    lines = [
        f"- {item.question.id} ({item.question.category}): rank {item.rank}, confidence {item.confidence:.2f}, "
        f"{'answered' if item.answer.found else 'refused'}: {item.question.question}"
        for item in outcomes
        if (item.question.answer and not (item.in_top and item.passage_right))
        or (not item.question.answer and item.answer.found)
    ]
    return "\n".join(lines)


def answerable(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [item for item in outcomes if item.question.category != UNANSWERABLE]


def english(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [item for item in answerable(outcomes) if item.question.category != MULTILINGUAL]


def _searching(found: Outcomes) -> str:
    heads = [f"recall@{K} {NAMES[mode]}" for mode in found] + [f"MRR {NAMES[mode]}" for mode in found]
    rows = [_row("all with an answer", found, answerable), _row("English categories", found, english)]
    categories = sorted({item.question.category for item in answerable(found["hybrid"])})
    rows += [_row(name, found, partial(_of, category=name)) for name in categories]
    gain = f"Hybrid minus dense only, paired: recall@{K} {_gain(found, 'in_top')}, MRR {_gain(found, 'reciprocal')}."
    return f"{table(('Category', 'n', *heads), rows)}\n\n{gain}"


def _row(name: str, found: Outcomes, chosen: Callable[[Iterable[Outcome]], list[Outcome]]) -> list[str]:
    groups = {mode: chosen(outcomes) for mode, outcomes in found.items()}
    count = len(next(iter(groups.values())))
    recall = [str(figure([item.in_top for item in group])) for group in groups.values()]
    return [name, str(count), *recall, *(str(figure([item.reciprocal for item in group])) for group in groups.values())]


def _of(outcomes: Iterable[Outcome], category: str) -> list[Outcome]:
    return [item for item in outcomes if item.question.category == category]


def _gain(found: Outcomes, measure: str) -> Figure:
    ours, theirs = ([getattr(item, measure) for item in answerable(found[mode])] for mode in ("hybrid", "dense"))
    return difference(ours, theirs)


def _answering(outcomes: Sequence[Outcome]) -> str:
    asked, unanswerable = answerable(outcomes), _of(outcomes, UNANSWERABLE)
    answered = [item for item in asked if item.answer.found]
    rows = [
        ["unanswerable questions recognised", _rate([not item.answer.found for item in unanswerable])],
        ["questions with an answer that were refused", _rate([not item.answer.found for item in asked])],
        ["answers whose cited passage holds the answer", _rate([item.passage_right for item in answered])],
        ["answers whose quote has the answer's words", _rate([item.quote_right for item in answered])],
        ["citations", str(sum(len(item.answer.citations) for item in outcomes))],
        ["citations that are not literally in the source", str(sum(item.not_literal for item in outcomes))],
        ["miscopied quotes caught", str(sum(item.answer.false_quotes for item in outcomes))],
    ]
    return table(("Answers from the hybrid search, by the scripted judge", ""), rows)


def _rate(values: Sequence[bool]) -> str:
    return f"{sum(values)} of {len(values)}: {figure([float(value) for value in values])}"


def _support(claims: Sequence[Claim], flags: Sequence[bool]) -> str:
    planted, marked = sum(not claim.supported for claim in claims), sum(flags)
    caught = sum(flag and not claim.supported for claim, flag in zip(claims, flags, strict=True))
    precision = f"precision {share(caught, marked):.3f} ({caught} of {marked})"
    recall = f"recall {share(caught, planted):.3f} ({caught} of {planted})"
    return f"Support check, {planted} unsupported among {len(claims)}: {precision}, {recall}."


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown."""
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
