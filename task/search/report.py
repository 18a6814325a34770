"""Render a search: its stage for the user, its answer for the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from task.embedding.client import Progress
from task.errors import ProviderError
from task.output.sinks import StageSink
from task.search.answers import UNSUPPORTED, CheckedAnswer
from task.search.chunks import ChunkedDocument
from task.search.passages import Passage
from task.search.ranking import Hit
from task.search.shelf import Opened

_PROGRESS_SECONDS = 2.0
_SHOWN_CHARS = 160
NOTHING = (
    "Not in the document: the excerpts that fit the question best do not answer it. Tell the user so; do not answer "
    "from elsewhere as if it stood there."
)


class StageReport:
    """Writes the documented parts into a stage: arguments, indexing, searching, generating."""

    def __init__(self, stage: StageSink, clock: Callable[[], float] = monotonic) -> None:
        self._stage = stage
        self._clock = clock
        self._embedded: dict[str, int] = {}
        self._chunks = 0
        self._shown_at = clock()
        self._shown = ""

    def read_whole(self, documents: Sequence[ChunkedDocument]) -> None:
        names = ", ".join(f"**{document.name}**: {len(document.text):,} characters" for document in documents)
        self.write(f"## Reading the whole document\n\n{names}, short enough to be read without an index\n\n")

    def indexing(self, opened: Sequence[Opened]) -> None:
        self.write("## Indexing document\n\n")
        self._chunks = sum(len(item.document.chunks) for item in opened if not item.index)
        self._shown_at = self._clock()
        for item in opened:
            how = "Using cached index, " if item.index else ""
            self.write(f"**{item.document.name}**: {how}{len(item.document.chunks):,} chunks\n\n")
            self._list(item.document.notes)

    def without_text(self, notes: Sequence[str]) -> None:
        """Name the documents that cannot be searched."""
        if notes:
            self.write("## Documents without text\n\n")
            self._list(notes)

    def progress(self, opened: Opened) -> Callable[[Progress], None]:
        """An observer that continues the one line on all documents: how much of them is embedded."""

        def observe(progress: Progress) -> None:
            self._embedded[opened.key] = progress.done
            if progress.restarted:
                self._continue("the embedding process ended unexpectedly and was started again")
            elif self._clock() - self._shown_at >= _PROGRESS_SECONDS and progress.done < progress.total:
                done = sum(self._embedded.values())
                self._continue(f"{10 * done // self._chunks * 10} %" if done else "preparing the model")

        return observe

    def _continue(self, state: str) -> None:
        # Text can only be appended to a stage: a line changes by growing, and only when there is news.
        if state != self._shown:
            self.write(f" … {state}" if self._shown else state.capitalize())
            self._shown, self._shown_at = state, self._clock()

    def hits(self, hits: Sequence[Hit], documents: Sequence[ChunkedDocument]) -> None:
        self.write("\n## Searching for relevant content\n\n")
        for rank, hit in enumerate(hits, 1):
            document = documents[hit.document]
            shown = " ".join(document.chunks[hit.chunk].split())[:_SHOWN_CHARS]
            self.write(f"{rank}. similarity {hit.similarity:.2f}, {document.name}: {shown}\n")

    def generating(self) -> None:
        self.write("\n## Generating response\n\n")

    def answered(self, answer: CheckedAnswer) -> None:
        lines = [f"- {item.title}: “{item.quote}”" for item in answer.citations]
        if answer.false_quotes:
            lines.append(f"- left out, as not in the document: {_counted(answer.false_quotes, 'quote')}")
        if answer.unsupported:
            lines.append(f"- marked {UNSUPPORTED}: {_counted(answer.unsupported, 'statement')}")
        if not answer.found:
            lines.append("- the answer is not in the document")
        self.write("\n\n## Sources\n\n" + "\n".join(lines) + "\n")

    def ended(self, text: str) -> str:
        """Write and return the result of a search without a checked answer."""
        self.write(f"\n{text}\n")
        return text

    def _list(self, notes: Sequence[str]) -> None:
        if notes:
            self.write("".join(f"- {note}\n" for note in notes) + "\n")

    def write(self, text: str) -> None:
        if text:
            self._stage.append_content(text)


def for_the_model(answer: CheckedAnswer, notes: Sequence[str]) -> str:
    """The checked answer with its sources, and how far the model may rely on it."""
    parts = [answer.text if answer.found else NOTHING]
    if answer.citations:
        parts.append(
            "Sources, to be cited by these numbers:\n"
            + "\n".join(f'{item.title}: "{item.quote}"' for item in answer.citations)
        )
    if answer.unsupported:
        parts.append(f"What is marked {UNSUPPORTED} is not in the excerpts: do not repeat it as a fact.")
    return "\n\n".join((*parts, *_about(notes)))


def passages_only(found: Sequence[Passage], deployment: str, error: ProviderError, notes: Sequence[str]) -> str:
    """The excerpts themselves, for when no deployment could write an answer."""
    status = f" (status {error.status_code})" if error.status_code else ""
    head = f"{deployment} could not write an answer{status}. Answer from these excerpts, naming them:"
    excerpts = (f"[{passage.number}] {passage.title}:\n{passage.text}" for passage in found)
    return "\n\n".join((head, *excerpts, *_about(notes)))


def _about(notes: Sequence[str]) -> list[str]:
    return [f"About the documents: {'; '.join(notes)}"] if notes else []


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
