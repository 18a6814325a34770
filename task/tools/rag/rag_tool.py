"""The tool that answers questions from documents, with checked quotes as sources."""

from __future__ import annotations

import asyncio
import mimetypes
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from task.blocking import close_all
from task.conversation.messages import Attachment, CustomContent, Message, Role
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
from task.search.chunks import ChunkedDocument, chunk_document
from task.search.document_cache import DocumentCache
from task.search.embeddings import Embeddings
from task.search.index_store import MemoryVectors, VectorStore
from task.search.passages import Passage, estimated_tokens, passages, whole
from task.search.ranking import Hit, SearchOptions, build_index, ranked
from task.search.readings import Readings, requester_of
from task.search.report import StageReport, for_the_model, passages_only
from task.search.reranking import reranked
from task.search.shelf import MAX_CHUNKS, Opened, Shelf
from task.tools.base import BaseTool
from task.tools.models import Caller, ToolCallParams, nobody
from task.tools.toolbox import request_arguments

SECONDS = 900.0
MAX_FILES = 10
_Result = TypeVar("_Result")
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
        vectors: VectorStore | None = None,
        model: ModelOf | None = None,
        options: RagOptions | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._deployment = deployment_name
        self._options = options or RagOptions()
        self._model = model
        self._embedder: Embeddings = embedder or Embedder(default_folder())
        self._readings = readings or Readings(UnpooledFiles(endpoint))
        self._starting: asyncio.Task[None] | None = None
        self._vectors = vectors or MemoryVectors(self._readings)
        self._shelf = Shelf(
            self._readings,
            self._embedder,
            document_cache,
            vectors=self._vectors,
            max_chunks=self._options.max_chunks,
        )

    @property
    def name(self) -> str:
        return "rag_search_tool"

    @property
    def description(self) -> str:
        text = (
            "Answer a question from long documents attached to the conversation: searches them by meaning and words, "
            "and returns an answer with numbered sources. Best for finding a fact or passage; says so when the "
            "documents do not hold it. To read a document from beginning to end, use file_content_extraction_tool."
        )
        if not self._options.counts_with:
            return text
        return f"{text} To count, sum, filter or compare the rows of a table, use {self._options.counts_with}."

    @property
    def parameters(self) -> dict[str, Any]:
        url = (
            "The URL of the file to search in, as it stands in the attachments; several files: their URLs with spaces "
            "between them"
        )
        return {
            "type": "object",
            "properties": {
                "request": {"type": "string", "description": "The search query or question, complete in itself"},
                "file_url": {"type": "string", "description": url},
            },
            "required": ["request", "file_url"],
        }

    @property
    def show_in_stage(self) -> bool:
        return False

    @property
    def timeout(self) -> float | None:
        return self._options.seconds

    @property
    def origin(self) -> Origin:
        """A model writes the results; they are not copied from outside."""
        return Origin.MADE

    def prepare(self, attached: Sequence[Attachment]) -> None:
        """Start what a search needs, so that it is there when the model calls it."""
        running = self._starting is not None and not self._starting.done()
        if not running and any(is_readable(item.url or item.title or "", item.type) for item in attached):
            self._starting = asyncio.create_task(self._start())

    async def _start(self) -> None:
        await asyncio.gather(self._embedder.start(), asyncio.to_thread(_load_libraries))

    async def state(self) -> State:
        """Whether documents can be searched already."""
        return await asyncio.to_thread(self._embedder.state)

    async def close(self) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})
        await close_all(self._readings.close, self._embedder.close, self._vectors.close)

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        question, urls = _question_and_urls(arguments)
        report = StageReport(tool_call_params.stage)
        report.write(request_arguments({"request": question, "file_url": "\n".join(urls)}))
        requester = await requester_of(
            tool_call_params.caller, tool_call_params.api_key, tool_call_params.conversation_id
        )
        opened = await _together(self._shelf.open(url, requester) for url in urls)
        readable = [document for document in opened if document.document.chunks]
        if not readable:
            return report.ended(f"There is no text to search in. {'. '.join(_notes(opened))}. Tell the user.")
        report.without_text(_notes([item for item in opened if not item.document.chunks]))
        sources = tool_call_params.sources
        found = [
            _numbered(item, readable, sources)
            for item in await self._found(question, readable, tool_call_params, report)
        ]
        return await self._answered(question, found, readable, _notes(opened), tool_call_params, report)

    async def _found(
        self, question: str, opened: Sequence[Opened], params: ToolCallParams, report: StageReport
    ) -> list[Passage]:
        documents = [item.document for item in opened]
        if sum(estimated_tokens(document.text) for document in documents) <= self._options.whole_tokens:
            report.read_whole(documents)
            return whole(documents)
        report.indexing(opened)
        caller = params.caller or _caller_of(params)
        indexes = await _together(self._shelf.indexed(item, report.progress(item), caller) for item in opened)
        [vector] = await self._embedder.embed([question], caller=caller)
        cosines = await _together(
            self._shelf.similarities(item, index, vector, report.progress(item), caller)
            for item, index in zip(opened, indexes, strict=True)
        )
        hits = await asyncio.to_thread(ranked, indexes, question, cosines, self._options.search)
        if self._options.reranker:
            hits = await self._reranked(question, hits, documents, params)
        report.hits(hits[: self._options.k], documents)
        return passages(documents, hits, k=self._options.k, tokens=self._options.context_tokens)

    async def _reranked(
        self, question: str, hits: Sequence[Hit], documents: Sequence[ChunkedDocument], params: ToolCallParams
    ) -> list[Hit]:
        caller, deployment = params.caller or _caller_of(params), self._options.reranker
        async with self._chat_model(deployment, caller) as model:
            return await reranked(model, question, hits, documents, lambda usage: caller.spend(usage, deployment))

    async def _answered(
        self,
        question: str,
        found: Sequence[Passage],
        opened: Sequence[Opened],
        notes: Sequence[str],
        params: ToolCallParams,
        report: StageReport,
    ) -> Message:
        report.generating()
        try:
            caller = params.caller or _caller_of(params)
            async with self._chat_model(self._deployment, caller) as model:
                text = await written(
                    model, question, found, report.write, lambda usage: caller.spend(usage, self._deployment)
                )
        except ProviderError as error:
            quoted = CustomContent(tuple(_citation(item, item.source[:QUOTE_CHARS], opened, params) for item in found))
            text = report.ended(passages_only(found, self._deployment, error, notes))
            return Message(Role.TOOL, text, custom_content=quoted)
        answer = checked(text, found)
        report.answered(answer)
        cited = CustomContent(tuple(_citation(item.passage, item.quote, opened, params) for item in answer.citations))
        return Message(Role.TOOL, for_the_model(answer, notes), custom_content=cited)

    @asynccontextmanager
    async def _chat_model(self, deployment: str, caller: Caller) -> AsyncGenerator[ChatModel]:
        if self._model is not None:
            yield self._model(deployment, caller)
            return
        from task.llm.dial import DialChatModel
        from task.llm.transport import new_session

        async with new_session() as session:
            yield DialChatModel(session, self._endpoint, deployment, caller.api_key, headers=caller.headers)


def _load_libraries() -> None:
    # Those that splitting, indexing and searching import where they are first used.
    import numpy as np

    build_index(chunk_document("", [Block("text")]), np.ones((1, 1), dtype=np.float32))


def _question_and_urls(arguments: dict[str, Any]) -> tuple[str, list[str]]:
    question = str(arguments["request"]).strip()
    urls = list(dict.fromkeys(filter(None, _BETWEEN.split(str(arguments["file_url"]).strip()))))
    if not question or not urls:
        raise ToolError("The request or the file_url is empty. Say what is searched, and in which attached file.")
    if len(urls) > MAX_FILES:
        raise ToolError(f"{len(urls)} files are too many for one search: name at most {MAX_FILES}.")
    return question, urls


async def _together(works: Iterable[Coroutine[Any, Any, _Result]]) -> list[_Result]:
    # Unlike in a TaskGroup, the error of the one that fails is raised as it is.
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


def _notes(opened: Sequence[Opened]) -> list[str]:
    return [
        f"{item.document.name}: {note}"
        for item in opened
        for note in item.document.notes or (() if item.document.chunks else ("it is empty",))
    ]


def _numbered(passage: Passage, opened: Sequence[Opened], sources: Sources) -> Passage:
    return replace(passage, number=sources.number((opened[passage.document].url, passage.where, passage.source)))


def _citation(passage: Passage, quote: str, opened: Sequence[Opened], params: ToolCallParams) -> Attachment:
    file = opened[passage.document]
    kind = file.content_type or mimetypes.guess_type(file.document.name)[0]
    return params.sources.citation(
        passage.number, passage.title, data=quote, reference_url=file.url, reference_type=kind
    )


def _caller_of(params: ToolCallParams) -> Caller:
    return Caller(params.api_key, nobody, params.conversation_id)
