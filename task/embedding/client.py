"""Ask the embedding process for vectors: found or started when it is needed, started again when it dies."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from task.embedding.model import Precision
from task.embedding.server import Frame, receive, send
from task.embedding.weights import MODEL_NAME, EmbeddingUnavailable, PackagedModel, State
from task.errors import ToolError
from task.telemetry.operations import queued

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SILENCE_SECONDS = 60.0  # the process reports progress every second
START_SECONDS = 60.0  # importing from a cold, busy disk
ENGINE = "2"  # raised when the packaged model's vectors change: indexes made before are made again, once
PROTOCOL = 1
SOCKET_BYTES = 103  # what a socket's path may have on every system
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
# Threads that wait for each other sleep: spinning would take the cores from streaming answers.
_PATIENT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
_MAIN = "import sys; sys.path.insert(0, {source!r}); from task.embedding.server import main; main(*sys.argv[1:])"
_SOURCE = str(Path(__file__).parents[2])


Observer = Callable[[int], None]  # receives how many of the texts are embedded


@dataclass(frozen=True, slots=True)
class EmbedderOptions:
    """Which model, and how it computes.

    `model` is a folder or a name on a model hub, empty for the `packaged` one; `threads` 0 takes all cores.
    `cross_encoder`, named like a model, is what `rank` uses. `environment` are the only variables the process gets.
    """

    model: str = ""
    precision: Precision = "auto"
    threads: int = 0
    environment: tuple[tuple[str, str], ...] = ()
    packaged: PackagedModel = field(default_factory=PackagedModel)
    cross_encoder: str = ""


def default_folder() -> Path:
    """This user's folder for the socket, the same for all agents of the host."""
    return Path(tempfile.gettempdir()) / f"dial-agent-{os.getuid()}"


class Embedder:
    """The embedding process of this host: agents with the same `folder` and options share it.

    The first request of any agent starts it, and it ends with that agent; then the next request of another agent
    starts it again. May be used from several threads and event loops.
    """

    def __init__(
        self,
        folder: Path,
        options: EmbedderOptions | None = None,
        *,
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self.options = options or EmbedderOptions()
        self._folder = folder
        self._silence = silence
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()

    @property
    def model_name(self) -> str:
        """Distinguishes the vectors of different models."""
        return self.options.model or f"{MODEL_NAME} {ENGINE}"

    @property
    def pid(self) -> int | None:
        """The process this agent has started, while it has one."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def state(self) -> State:
        """Whether the model is here; the libraries find other models themselves."""
        return State("ready", "ready") if self.options.model else self.options.packaged.state()

    async def embed(
        self, texts: Sequence[str], observer: Observer | None = None, caller: object = None
    ) -> NDArray[np.float32]:
        """One normalised row for each text; cancelling the call cancels the work. The process needs no caller.

        Raises:
            EmbeddingUnavailable: the model cannot be loaded, or the process dies twice.
        """
        request = await asyncio.to_thread(_encoded, Frame("embed"), texts)
        answer = await self._answer(request, observer or (lambda done: None))
        return await asyncio.to_thread(_matrix, answer, len(texts))

    async def rank(self, question: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """How well each text answers the question, by the cross-encoder of the options.

        Raises:
            EmbeddingUnavailable: it cannot be loaded.
        """
        _check_name("AGENT_RAG__CROSS_ENCODER", self.options.cross_encoder)
        request = _encoded(Frame("rank", {"model": self.options.cross_encoder}), [question, *texts])
        return _matrix(await self._answer(request, lambda done: None), len(texts))[:, 0]

    async def _answer(self, request: Frame, report: Observer) -> Frame:
        with queued("embedding"):
            try:
                return await self._request(request, report)
            except (ConnectionError, TimeoutError):
                try:
                    return await self._request(request, report)
                except (ConnectionError, TimeoutError) as error:
                    text = "The embedding process ended twice. Try again later or tell the user."
                    raise EmbeddingUnavailable(text) from error

    async def start(self) -> None:
        """Start the process, which loads the model at once; a search that follows reports what is wrong with it."""
        with suppress(EmbeddingUnavailable):
            await asyncio.to_thread(self._start)

    async def close(self) -> None:
        """End the process, if this agent has started it or is starting it now."""
        await asyncio.to_thread(self._end)

    async def _request(self, request: Frame, report: Observer) -> Frame:
        reader, writer = await self._connect()
        process = self._process
        try:
            async with asyncio.timeout(self._silence):
                await send(writer, request)
            while True:
                async with asyncio.timeout(self._silence):
                    frame = await receive(reader)
                if frame.kind == "vectors":
                    return frame
                if frame.kind == "unavailable":
                    raise EmbeddingUnavailable(frame.body.decode(errors="replace"))
                report(frame.facts["done"])
        except (ConnectionError, TimeoutError):
            if process is not None:
                await asyncio.to_thread(self._end, process)
            raise
        finally:
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        path = self._socket
        with suppress(OSError):
            return await asyncio.open_unix_connection(path)
        await asyncio.to_thread(self._start)
        try:
            return await asyncio.open_unix_connection(path)
        except OSError as error:
            raise ConnectionError("the embedding process ended at once") from error

    @property
    def _socket(self) -> Path:
        # Agents of different versions must not share a process, and a socket's path is limited to 100 characters.
        key = json.dumps([PROTOCOL, *self._arguments, self.options.cross_encoder, sys.executable, _SOURCE])
        return self._folder / f"embedder-{sha256(key.encode()).hexdigest()[:16]}.sock"

    @property
    def _arguments(self) -> tuple[str, ...]:
        options = self.options
        return str(options.packaged.base), options.model, options.precision, str(options.threads)

    def _start(self) -> None:
        model = self.options.model
        # A name on a hub, such as BAAI/x, must not lead to a folder of whoever made the working directory.
        if Path(model).is_absolute() != (bool(model) and Path(model).exists()):
            text = (
                f"EMBEDDING_MODEL={model}: a folder is named by its whole path and exists; others are names on a hub."
            )
            raise EmbeddingUnavailable(text)
        if not model:
            self.options.packaged.fetch()
        self._prepare_folder()
        with self._starting, _locked(self._socket.with_suffix(".lock")):
            if _answers(self._socket):
                return
            self._kill()  # reaps one that has died
            self._socket.unlink(missing_ok=True)
            self._process = self._spawn()
            if not _is_ready(self._process, START_SECONDS):
                self._kill()
                raise EmbeddingUnavailable("The embedding process does not start. Tell the user.")

    def _prepare_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._folder.stat()
        except OSError as error:
            raise EmbeddingUnavailable(
                f"The folder {self._folder} cannot be used for the embedding process."
            ) from error
        if len(os.fsencode(self._socket)) > SOCKET_BYTES:
            raise EmbeddingUnavailable(
                f"The path {self._folder} is too long for the socket of the embedding process. An operator has to set "
                "AGENT_RAG__PROCESS_DIR to a shorter one."
            )
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise EmbeddingUnavailable(f"The folder {self._folder} can be written by others; it is not used.")

    def _spawn(self) -> subprocess.Popen[bytes]:
        options = self.options
        command = [sys.executable, "-I", "-c", _MAIN.format(source=_SOURCE), str(self._socket), *self._arguments]
        environment = {
            **_QUIET,
            **_PATIENT,
            **({} if options.model or options.cross_encoder else _OFFLINE),
            **dict(options.environment),
        }
        return subprocess.Popen(  # noqa: S603
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def _end(self, process: subprocess.Popen[bytes] | None = None) -> None:
        with self._starting:
            if process in (None, self._process):  # another failed request may have replaced it already
                self._kill()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def _locked(path: Path) -> Generator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _is_ready(process: subprocess.Popen[bytes], seconds: float) -> bool:
    assert process.stdout is not None
    output = select.poll()  # select() cannot watch files above 1024, and each streaming answer takes some
    output.register(process.stdout, select.POLLIN)
    return bool(output.poll(seconds * 1000)) and process.stdout.readline() == b"ready\n"


def _check_name(setting: str, model: str) -> None:
    # A name on a hub, such as BAAI/x, must not lead to a folder of whoever made the working directory.
    if Path(model).is_absolute() != (bool(model) and Path(model).exists()):
        text = f"{setting}={model}: a folder is named by its whole path and exists; others are names on a hub."
        raise EmbeddingUnavailable(text)


def _encoded(request: Frame, texts: Sequence[str]) -> Frame:
    import orjson  # several times as fast as json, whose single call would hold up the event loop

    # Half of a surrogate pair, as in "\ud800", is not text.
    whole = [text.encode(errors="replace").decode() for text in texts]
    return replace(request, body=orjson.dumps(whole))


def _matrix(frame: Frame, rows: int) -> NDArray[np.float32]:
    import numpy as np

    if frame.facts["rows"] != rows:
        raise ToolError("The embedding process answered with another number of vectors than it was asked for.")
    return np.frombuffer(frame.body, dtype="<f4").reshape(rows, -1 if rows else 0)
