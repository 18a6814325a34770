"""The tool that answers questions from documents, with checked quotes as sources."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from task.closing import close_all, together
from task.conversation.messages import Attachment, Message, Role
from task.conversation.sources import Sources
from task.core_client.files import UnpooledFiles
from task.documents.extract import is_readable
from task.documents.model import Block
from task.embedding.client import Embedder, default_folder
from task.embedding.environment import State
from task.errors import ProviderError, ToolError
from task.llm.base import ChatModel
from task.permissions.taint import Origin
from task.search.answers import QUOTE_CHARS, checked, written
from task.search.chunks import chunk_document
from task.search.document_cache import DocumentCache
from task.search.embeddings import Embeddings
from task.search.passages import Passage, estimated_tokens, passages, reranked, whole
from task.search.ranking import SearchOptions, build_index, ranked
from task.search.readings import Readings, requester_of
from task.search.report import StageReport, for_the_model, passages_only
from task.search.shelf import MAX_CHUNKS, Opened, Shelf
from task.search.vectors import MemoryVectors
from task.tools.base import DescribedTool, ToolSpec, object_schema, text
from task.tools.models import Caller, ToolCallParams, nobody
from task.tools.toolbox import request_arguments

SECONDS = 900.0
MAX_FILES = 10
_DESCRIPTION = (
    "Answer a question from long documents attached to the conversation: searches them by meaning and words, and "
    "returns an answer with numbered sources. Best for finding a fact or passage; says so when the documents do not "
    "hold it. To read a document from beginning to end, use file_content_extraction_tool."
)
_COUNTING = "To count, sum, filter or compare the rows of a table, use {}."
_BETWEEN = re.compile(r"\s+|,(?=\s*(?:files/|https?://))")


@dataclass(frozen=True, slots=True)
class RagOptions:
    """The model reads `k` chunks, and their neighbours and further chunks within `context_tokens`.

    Documents of at most `whole_tokens` together are read whole. `counts_with` names the tool for counting and summing,
    if there is one; `seconds` limits one call. `reranker` is a deployment that orders the best chunks.
    """

    k: int = 3
    context_tokens: int = 1500
    whole_tokens: int = 1500
    seconds: float = SECONDS
    counts_with: str = ""
    reranker: str = ""
    search: SearchOptions = field(default_factory=SearchOptions)
    max_chunks: int = MAX_CHUNKS


ModelOf = Callable[[str, Caller], ChatModel]


class RagTool(DescribedTool):
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
                    "spaces between them"
                ),
            ),
            origin=Origin.MADE,  # a model writes the results; they are not copied from outside
            show_in_stage=False,
            timeout=self._options.seconds,
        )
        self._model = model
        self._embedder: Embeddings = embedder or Embedder(default_folder())
        self._readings = readings or Readings(UnpooledFiles(endpoint))
        self._starting: asyncio.Future[Any] | None = None
        self._vectors = vectors or MemoryVectors(self._readings)
        self._shelf = Shelf(
            self._readings, self._embedder, document_cache, vectors=self._vectors, max_chunks=self._options.max_chunks
        )

    def prepare(self, attached: Sequence[Attachment]) -> None:
        """Start what a search needs, so that it is there when the model calls it."""
        running = self._starting is not None and not self._starting.done()
        if not running and any(is_readable(item.url or item.title or "", item.type) for item in attached):

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
        requester = await requester_of(params.caller, params.api_key, params.conversation_id)
        opened = await together(self._shelf.open(url, requester) for url in urls)
        readable = [item for item in opened if item.document.chunks]
        if not readable:
            return report.ended(f"There is no text to search in. {'. '.join(_notes(opened))}. Tell the user.")
        report.without_text(_notes([item for item in opened if not item.document.chunks]))
        caller = params.caller or Caller(params.api_key, nobody, params.conversation_id)
        found = [
            replace(item, number=params.sources.number((readable[item.document].url, item.where, item.source)))
            for item in await self._found(question, readable, caller, report)
        ]
        report.generating()
        deployment, notes = self._deployment, _notes(opened)
        try:
            async with self._chat_model(deployment, caller) as model:
                said = await written(
                    model, question, found, report.write, lambda usage: caller.spend(usage, deployment)
                )
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
        if deployment := self._options.reranker:
            async with self._chat_model(deployment, caller) as model:
                hits = await reranked(model, question, hits, documents, lambda usage: caller.spend(usage, deployment))
        report.hits(hits[: self._options.k], documents)
        return passages(documents, hits, k=self._options.k, tokens=self._options.context_tokens)

    @asynccontextmanager
    async def _chat_model(self, deployment: str, caller: Caller) -> AsyncGenerator[ChatModel]:
        if self._model is not None:
            yield self._model(deployment, caller)
            return
        from task.llm.dial import DialChatModel
        from task.llm.transport import new_session

        async with new_session() as session:
            yield DialChatModel(session, self._endpoint, deployment, caller.api_key, headers=caller.headers)


def _notes(opened: Sequence[Opened]) -> list[str]:
    return [
        f"{item.document.name}: {note}"
        for item in opened
        for note in item.document.notes or (() if item.document.chunks else ("it is empty",))
    ]


def _citation(passage: Passage, quote: str, file: Opened, sources: Sources) -> Attachment:
    kind = file.content_type or mimetypes.guess_type(file.document.name)[0]
    return sources.citation(passage.number, passage.title, data=quote, reference_url=file.url, reference_type=kind)
