"""The web page: its files, compressed and cached, and what it asks of the agent."""

import asyncio
import gzip
import mimetypes
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, UploadFile
from fastapi import File as FormFile
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from task.api.failures import failures, refused
from task.api.markdown import BlockBody, blocks_of
from task.api.schemas import RequestModel, Text
from task.api.service import CurrentService, router
from task.errors import InvalidRequest, NotFound
from task.llm.demo import SAMPLES
from task.llm.openai import Recording
from task.runs.titles import OFF
from task.shares import Shares

MAX_TEXTS = 100
# At a time, one for a caller: rendering a long text takes long.
_RENDERERS = Shares(2)
RECORDING_BYTES = 25 * 10**6  # what OpenAI's endpoint takes
STATIC = Path(__file__).parent / "web" / "static"
PAGE = "index.html"
CHARTS = "plotly.min.js"  # comes with Python's plotly; asked for with the first chart
# Plotly, KaTeX and Mermaid write styles; scripts and fonts come from here only, and no request goes anywhere else.
POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self'; style-src 'self' 'unsafe-inline'; font-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
HEADERS = {
    "Access-Control-Allow-Origin": "*",  # the frame that draws diagrams has an origin of its own
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
LISTENING = "camera=(), geolocation=(), microphone=(self)"
_OF_A_VERSION = re.compile("^[0-9a-f]{16}/")
_IMPORT = re.compile(r'^(?:import|export)\b[^;]*?"\./([\w.-]+\.js)";', re.MULTILINE)
# What every browser needs, also where the system's own table does not know it.
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".woff2": "font/woff2"}


@dataclass(frozen=True)
class PageFile:
    """One file of the page, read when it is asked for; an address with its `version` never has other content.

    The page with a version leads to the files of that version.
    """

    name: str
    path: Path
    version: str = ""

    @cached_property
    def content(self) -> bytes:
        content = self.path.read_bytes()
        if self.name != PAGE:
            return content
        # The page lists the modules that it needs, so that they are loaded at once, not import by import.
        modules = ["main.js"]  # and all that `import` statements lead to, but not what `import()` loads later
        for name in modules:
            imported = _IMPORT.findall((STATIC / name).read_text("utf-8"))
            modules += [other for other in dict.fromkeys(imported) if other not in modules]
        links = "".join(f'<link rel="modulepreload" href="static/{name}">' for name in modules)
        content = content.replace(b"</head>", links.encode() + b"</head>")
        return content.replace(b'="static/', f'="static/{self.version}/'.encode()) if self.version else content

    @property
    def media_type(self) -> str:
        known = _TYPES.get(Path(self.name).suffix) or mimetypes.guess_type(self.name)[0]
        return known or "application/octet-stream"

    @cached_property
    def tag(self) -> str:
        return f'"{sha256(self.content).hexdigest()[:32]}"'

    @cached_property
    def compressed(self) -> bytes:
        return gzip.compress(self.content, 6, mtime=0)

    def response(self, request: Request) -> Response:
        """The file, or 304 where the browser has it."""
        keeping = "max-age=31536000, immutable" if self.version and self.name != PAGE else "no-cache"
        headers = {**HEADERS, "Cache-Control": keeping, "ETag": self.tag, "Vary": "Accept-Encoding"}
        if self.tag in request.headers.get("if-none-match", "").replace("W/", "").split(", "):
            return Response(status_code=304, headers=headers)
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self.content, headers=headers, media_type=self.media_type)
        return Response(self.compressed, headers={**headers, "Content-Encoding": "gzip"}, media_type=self.media_type)


@cache
def _version() -> str:
    digest = sha256()
    for path in sorted(STATIC.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(STATIC).as_posix()} {sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]


def page_files() -> Mapping[str, PageFile]:
    """The files that may be asked for, by their path below the folder; the page has no others.

    The page's own have a second path, below their version: browsers keep those without asking whether they are new.
    """
    paths = (path for path in sorted(STATIC.rglob("*")) if path.is_file())
    own = {name: PageFile(name, path) for path in paths if (name := path.relative_to(STATIC).as_posix())}
    version = _version()
    kept = {f"{version}/{name}": replace(file, version=version) for name, file in own.items()}
    plotly = find_spec("plotly")  # not imported, which would take long
    charts = Path(plotly.origin if plotly and plotly.origin else "").parent / "package_data" / CHARTS
    samples = {name: PageFile(name, sample.path) for sample in SAMPLES if (name := f"samples/{sample.name}")}
    return {**own, **kept, **samples, CHARTS: PageFile(CHARTS, charts)}


def add_page(app: FastAPI, paths: Sequence[str], *, listens: bool) -> None:
    """Serve the page at `/` and its files below `/static`, or one of both; what `listens` may use the microphone."""
    files: dict[str, PageFile] = {}

    async def file(request: Request) -> Response:
        if not files:
            files.update(await asyncio.to_thread(page_files))
        name = request.path_params.get("name", f"{_version()}/{PAGE}")
        if name not in files:
            name = _OF_A_VERSION.sub("", name)  # a page that was loaded before an update
        if name not in files:
            raise HTTPException(404, "There is no such file.")
        response = await asyncio.to_thread(files[name].response, request)
        if listens and files[name].name == PAGE:
            response.headers["Permissions-Policy"] = LISTENING
        return response

    for path in paths:
        app.router.routes.append(Route(path, file, methods=["GET"], include_in_schema=False))


class MarkdownRequest(RequestModel):
    """Texts that were written as Markdown."""

    texts: Annotated[list[Text], Field(max_length=MAX_TEXTS)]


class MarkdownBody(BaseModel):
    """The blocks of each text, in the order of the texts."""

    texts: list[list[BlockBody]]


class PageFactsBody(BaseModel):
    """The bytes of the largest file, and whether a model makes titles and speech can be sent to `/transcription`;
    whether users may have a memory."""

    upload_bytes: int
    titles: bool
    transcription: bool
    memory: bool


routes = router("Web page")


@routes.get("/page", response_model=PageFactsBody, responses=failures())
async def facts(service: CurrentService) -> Any:
    """The limits and features of this agent that the page shows."""
    return {
        "upload_bytes": service.shelf.max_bytes,
        "titles": service.options.titles != OFF,
        "transcription": bool(service.options.transcription),
        "memory": service.services.memory is not None,
    }


@routes.post("/markdown", response_model=MarkdownBody, responses=failures(413, 415))
async def render(body: MarkdownRequest, service: CurrentService) -> Any:
    """Render texts as HTML in which nothing acts: no scripts, no HTML of the text's own, no remote pictures."""
    async with _RENDERERS.place():
        return {"texts": await asyncio.to_thread(lambda: list(map(blocks_of, body.texts)))}


class TranscriptionBody(BaseModel):
    text: str


@routes.post("/transcription", response_model=TranscriptionBody, responses=failures(404, 413, 415))
async def transcribe(service: CurrentService, file: Annotated[UploadFile, FormFile()]) -> Any:
    """The words of a recording, for the user to read before they are sent."""
    if not service.options.transcription:
        raise NotFound("Voice input is off. An operator switches it on with AGENT_HTTP__TRANSCRIPTION.")
    kind = (file.content_type or "").partition(";")[0]
    content = await file.read(RECORDING_BYTES + 1)
    if not kind.startswith("audio/") or not content:
        raise InvalidRequest("This is not a recording: send audio that is not empty.")
    if len(content) > RECORDING_BYTES:
        raise refused(413, "The recording is too long: speak for a few minutes at a time.", code="file_too_large")
    recording, caller = Recording(content, kind), service.caller.of_tools()
    return {"text": await service.profile.transcribe(service.options.transcription, recording, caller)}
