"""The tool that answers questions from documents, with checked quotes as sources."""

import asyncio
import mimetypes
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

from task.closing import close_all, together
from task.conversation.messages import FOLDER, Attachment, Message, Role
from task.conversation.sources import Sources
from task.core_client.files import DialFiles
from task.documents.extract import is_readable
from task.documents.model import Block, counted
from task.embedding.embedder import Embedder, Observer
from task.embedding.weights import State
from task.errors import ProviderError, ToolError
from task.llm.base import ChatModel
from task.output.sinks import StageSink, request_arguments
from task.permissions.taint import Origin
from task.search.answers import QUOTE_CHARS, UNSUPPORTED, CheckedAnswer, checked, request
from task.search.chunks import ChunkedDocument, chunk_document
from task.search.embeddings import Embeddings
from task.search.passages import Passage, asked, estimated_tokens, passages, reordered, reranked, whole
from task.search.ranking import Hit, SearchOptions, build_index, ranked
from task.search.readings import Readings
from task.search.shelf import MAX_CHUNKS, DocumentCache, Opened, Shelf
from task.search.vectors import MemoryVectors
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.models import Caller, ToolCallParams

SECONDS = 900.0
MAX_FILES = 10
MAX_BELOW = 50  # documents of a folder
_DESCRIPTION = (
    "Answer a question from long documents attached to the conversation: searches them by meaning and words, and "
    "returns an answer with numbered sources. Best for finding a fact or passage; says so when the documents do not "
    "hold it. To read a document from beginning to end, use file_content_extraction_tool."
)
_COUNTING = "To count, sum, filter or compare the rows of a table, use {}."
_PROGRESS_SECONDS = 2.0
_SHOWN_CHARS = 160
NOTHING = (
    "Not in the document: the excerpts that fit the question best do not answer it. Tell the user so; do not answer "
    "from elsewhere as if it stood there."
)
_BETWEEN = re.compile(r"\s+|,(?=\s*(?:files/|https?://))")


@dataclass(frozen=True, slots=True)
class RagOptions:
    """The model reads `k` chunks, and their neighbours and further chunks within `context_tokens`.

    Documents of at most `whole_tokens` together are read whole. `counts_with` names the tool for counting and summing,
    if there is one; `seconds` limits one call. `reranker` is a deployment that orders the best chunks,
    `cross_encoder` a model in this process that does.
    """

    k: int = 3
    context_tokens: int = 1500
    whole_tokens: int = 1500
    seconds: float = SECONDS
    counts_with: str = ""
    reranker: str = ""
    cross_encoder: str = ""
    search: SearchOptions = field(default_factory=SearchOptions)
    max_chunks: int = MAX_CHUNKS


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

    def progress(self, opened: Opened) -> Observer:
        """An observer that continues the one line on all documents: how much of them is embedded."""

        def observe(embedded: int) -> None:
            self._embedded[opened.key] = embedded
            done = sum(self._embedded.values())
            state = f"{10 * done // self._chunks * 10} %" if done else "preparing the model"
            is_due = self._clock() - self._shown_at >= _PROGRESS_SECONDS and embedded < len(opened.document.chunks)
            # Text can only be appended to a stage: a line changes by growing, and only when there is news.
            if is_due and state != self._shown:
                self.write(f" … {state}" if self._shown else state.capitalize())
                self._shown, self._shown_at = state, self._clock()

        return observe

    def hits(self, hits: Sequence[Hit], documents: Sequence[ChunkedDocument]) -> None:
        self.write("\n## Searching for relevant content\n\n")
        for rank, hit in enumerate(hits, 1):
            document = documents[hit.document]
            shown = " ".join(document.chunks[hit.chunk].split())[:_SHOWN_CHARS]
            self.write(f"{rank}. similarity {hit.similarity:.2f}, {document.name}: {shown}\n")

    def answered(self, answer: CheckedAnswer) -> None:
        lines = [f"- {item.title}: “{item.quote}”" for item in answer.citations]
        if answer.false_quotes:
            lines.append(f"- left out, as not in the document: {counted(answer.false_quotes, 'quote')}")
        if answer.unsupported:
            lines.append(f"- marked {UNSUPPORTED}: {counted(answer.unsupported, 'statement')}")
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


ModelOf = Callable[[str, Caller], ChatModel]


class RagTool(BaseTool):
    """Hybrid search over documents in DIAL, answered by a deployment. Source: API reference, RagTool.

    `endpoint` is DIAL Core's address, `deployment_name` the model that writes the answer, `document_cache` keeps
    indexes in memory, `readings` the text of files, `embedder` makes vectors and `vectors` keeps them; `model` resolves
    a deployment's chat model for a caller. The tool creates what it is not given, and closes the readings.
    """

    def __init__(
        self,
        endpoint: str,
        deployment_name: str,
        document_cache: DocumentCache,
        *,
        readings: Readings | None = None,
        embedder: Embeddings | None = None,
        vectors: MemoryVectors | None = None,
        model: ModelOf | None = None,
        options: RagOptions | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._deployment = deployment_name
        self._options = options or RagOptions()
        counting = f" {_COUNTING.format(self._options.counts_with)}" if self._options.counts_with else ""
        self.spec = ToolSpec(
            "rag_search_tool",
            _DESCRIPTION + counting,
            object_schema(
                "request",
                "file_url",
                request=text("The search query or question, complete in itself"),
                file_url=text(
                    "The URL of the file to search in, as it stands in the attachments; several files: their URLs with "
                    "spaces between them. A folder's URL, which ends in a slash, stands for all documents below it"
                ),
            ),
            origin=Origin.MADE,  # a model writes the results; they are not copied from outside
            show_in_stage=False,
            timeout=self._options.seconds,
        )
        self._model = model or self._own_model
        self._embedder: Embeddings = embedder or Embedder()
        self._readings = readings or Readings(DialFiles(endpoint))
        self._starting: asyncio.Future[Any] | None = None
        self._vectors = vectors or MemoryVectors(self._readings)
        self._shelf = Shelf(
            self._readings, self._embedder, document_cache, vectors=self._vectors, max_chunks=self._options.max_chunks
        )

    def prepare(self, attached: Sequence[Attachment]) -> None:
        """Start what a search needs, so that it is there when the model calls it."""
        running = self._starting is not None and not self._starting.done()
        readable = (is_readable(item.url or item.title or "", item.type) or item.type == FOLDER for item in attached)
        if not running and any(readable):

            def load_libraries() -> None:  # that splitting, indexing and searching import where they are first used
                import numpy as np

                build_index(chunk_document("", [Block("text")]), np.ones((1, 1), dtype=np.float32))

            self._starting = asyncio.gather(self._embedder.start(), asyncio.to_thread(load_libraries))

    async def state(self) -> State:
        """Whether documents can be searched already."""
        return await asyncio.to_thread(self._embedder.state)

    async def close(self) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})
        await close_all(self._readings.close, self._embedder.close, self._vectors.close)

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        params = tool_call_params
        arguments = params.arguments or self.parse(params.tool_call)
        question = str(arguments["request"]).strip()
        urls = list(dict.fromkeys(filter(None, _BETWEEN.split(str(arguments["file_url"]).strip()))))
        if not question or not urls:
            raise ToolError("The request or the file_url is empty. Say what is searched, and in which attached file.")
        if len(urls) > MAX_FILES:
            raise ToolError(f"{len(urls)} files are too many for one search: name at most {MAX_FILES}.")
        report = StageReport(params.stage)
        report.write(request_arguments({"request": question, "file_url": "\n".join(urls)}))
        caller = params.known_caller
        opened, left_out = await self._opened(urls, caller)
        readable = [item for item in opened if item.document.chunks]
        if not readable:
            reasons = ". ".join([*_notes(opened), *left_out])
            return report.ended(f"There is no text to search in. {reasons}. Tell the user.")
        report.without_text([*_notes([item for item in opened if not item.document.chunks]), *left_out])
        found = [
            replace(item, number=params.sources.number((readable[item.document].url, item.where, item.source)))
            for item in await self._found(question, readable, caller, report)
        ]
        report.write("\n## Generating response\n\n")
        deployment, notes = self._deployment, [*_notes(opened), *left_out]
        try:
            model, messages = self._model(deployment, caller), request(question, found)
            said = await asked(model, messages, lambda usage: caller.spend(usage, deployment), report.write)
        except ProviderError as error:
            quotes = [(item, item.source[:QUOTE_CHARS]) for item in found]
            text = report.ended(passages_only(found, deployment, error, notes))
        else:
            answer = checked(said, found)
            report.answered(answer)
            quotes = [(item.passage, item.quote) for item in answer.citations]
            text = for_the_model(answer, notes)
        cited = (_citation(passage, quote, readable[passage.document], params.sources) for passage, quote in quotes)
        return Message(Role.TOOL, text, attachments=tuple(cited))

    async def _opened(self, urls: Sequence[str], caller: Caller) -> tuple[list[Opened], list[str]]:
        """The documents at the URLs and below the folders among them, and notes on what of a folder is left out."""

        async def below(url: str) -> Opened | str:
            try:
                return await self._shelf.open(url, caller)
            except ToolError as error:
                return f"{url}: {error}"

        folders, notes = [url for url in urls if url.endswith("/")], list[str]()
        opened = await together(self._shelf.open(url, caller) for url in urls if url not in folders)
        for folder in folders:
            files, more = await self._readings.below(folder, caller, MAX_BELOW)
            notes += [f"only the first {MAX_BELOW} documents of {folder} are searched"] if more else []
            found = await together(map(below, files))
            opened += [item for item in found if isinstance(item, Opened)]
            notes += [item for item in found if isinstance(item, str)]
        return opened, notes

    async def _found(
        self, question: str, opened: Sequence[Opened], caller: Caller, report: StageReport
    ) -> list[Passage]:
        documents = [item.document for item in opened]
        if sum(estimated_tokens(document.text) for document in documents) <= self._options.whole_tokens:
            report.read_whole(documents)
            return whole(documents)
        report.indexing(opened)
        indexes = await together(self._shelf.indexed(item, report.progress(item), caller) for item in opened)
        [vector] = await self._embedder.embed([question], caller=caller)
        cosines = await together(
            self._shelf.similarities(item, index, vector, report.progress(item), caller)
            for item, index in zip(opened, indexes, strict=True)
        )
        hits = await asyncio.to_thread(ranked, indexes, question, cosines, self._options.search)
        if self._options.cross_encoder and isinstance(self._embedder, Embedder):
            hits = await reordered(self._embedder.rank, question, hits, documents)
        if deployment := self._options.reranker:
            model = self._model(deployment, caller)
            hits = await reranked(model, question, hits, documents, lambda usage: caller.spend(usage, deployment))
        report.hits(hits[: self._options.k], documents)
        return passages(documents, hits, k=self._options.k, tokens=self._options.context_tokens)

    def _own_model(self, deployment: str, caller: Caller) -> ChatModel:
        from task.llm.dial import DialChatModel

        return DialChatModel(None, self._endpoint, deployment, caller.api_key, headers=caller.headers)


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


def _notes(opened: Sequence[Opened]) -> list[str]:
    return [
        f"{item.document.name}: {note}"
        for item in opened
        for note in item.document.notes or (() if item.document.chunks else ("it is empty",))
    ]


def _citation(passage: Passage, quote: str, file: Opened, sources: Sources) -> Attachment:
    kind = file.content_type or mimetypes.guess_type(file.document.name)[0]
    return sources.citation(passage.number, passage.title, data=quote, reference_url=file.url, reference_type=kind)
