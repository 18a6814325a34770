"""Ask the embedding process for vectors: found or started when it is needed, started again when it dies."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from task.embedding.frames import Frame, receive, send
from task.embedding.model import Precision
from task.embedding.weights import MODEL_NAME, EmbeddingUnavailable
from task.errors import ToolError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SILENCE_SECONDS = 60.0  # the process tells every second that it lives
START_SECONDS = 20.0
PROTOCOL = 1
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
_QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}
# Threads that wait for one another sleep: those that spin would take the cores from the answers that stream.
_PATIENT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
_SOURCE = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Progress:
    """How many of the texts are embedded; `restarted` once, after the process had died under the request."""

    done: int
    total: int
    restarted: bool = False


Observer = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class EmbedderOptions:
    """Which model, and how it computes.

    `model` is a folder or a name on a model hub, empty for the packaged one; `threads` 0 takes all cores.
    `environment` are the only variables the process gets.
    """

    model: str = ""
    precision: Precision = "auto"
    threads: int = 0
    environment: tuple[tuple[str, str], ...] = ()


def default_folder() -> Path:
    """This user's folder for the socket, the same for all agents of the host."""
    return Path(tempfile.gettempdir()) / f"dial-agent-{os.getuid()}"


class Embedder:
    """The embedding process of this host: agents that name one `folder` and the same options share it.

    It is started on the first request, by whichever agent comes first, and ends with the agent that started it; then
    the next request of another starts it again. May be used from several threads and event loops.
    """

    def __init__(self, folder: Path, options: EmbedderOptions | None = None, *, silence: float = SILENCE_SECONDS):
        self.options = options or EmbedderOptions()
        self._folder = folder
        self._silence = silence
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = threading.Lock()

    @property
    def model_name(self) -> str:
        """What vectors of different models are told apart by."""
        return self.options.model or MODEL_NAME

    @property
    def pid(self) -> int | None:
        """The process this agent has started, while it has one."""
        return self._process.pid if self._process and self._process.poll() is None else None

    async def embed(self, texts: Sequence[str], observer: Observer | None = None) -> NDArray[np.float32]:
        """One normalised row for each text; cancelling the call cancels the work.

        Raises:
            EmbeddingUnavailable: the model cannot be loaded, or the process dies twice.
        """
        tell = observer or (lambda progress: None)
        try:
            answer = await self._asked(texts, tell)
        except (ConnectionError, TimeoutError):
            tell(Progress(0, len(texts), restarted=True))
            answer = await self._asked_again(texts, tell)
        return await asyncio.to_thread(_matrix, answer, len(texts))

    async def close(self) -> None:
        """End the process, if this agent has started it or is starting it now."""
        await asyncio.to_thread(self._stop)

    async def _asked_again(self, texts: Sequence[str], tell: Observer) -> Frame:
        try:
            return await self._asked(texts, tell)
        except (ConnectionError, TimeoutError) as error:
            raise EmbeddingUnavailable(
                "The embedding process ended twice. Try again later or tell the user."
            ) from error

    async def _asked(self, texts: Sequence[str], tell: Observer) -> Frame:
        request = await asyncio.to_thread(_request, texts)
        reader, writer = await self._connected()
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
                tell(Progress(frame.facts["done"], frame.facts["total"]))
        except (ConnectionError, TimeoutError):
            await asyncio.to_thread(self._end, process)
            raise
        finally:
            writer.close()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
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
        # Agents of different versions must not meet, and the path of a socket may have 100 characters only.
        told = json.dumps([PROTOCOL, self.options.model, self.options.precision, self.options.threads, sys.executable])
        return self._folder / f"embedder-{sha256(told.encode()).hexdigest()[:16]}.sock"

    def _start(self) -> None:
        self._own_folder()
        with self._starting, _locked(self._socket.with_suffix(".lock")):
            if _answers(self._socket):
                return
            self._kill()  # one that has died is waited for
            self._socket.unlink(missing_ok=True)
            self._process = self._spawned()
            if not _says_ready(self._process, START_SECONDS):
                self._kill()
                raise EmbeddingUnavailable("The embedding process does not start. Tell the user.")

    def _own_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._folder.stat()
        except OSError as error:
            raise EmbeddingUnavailable(
                f"The folder {self._folder} cannot be used for the embedding process."
            ) from error
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise EmbeddingUnavailable(f"The folder {self._folder} can be written by others; it is not used.")

    def _spawned(self) -> subprocess.Popen[bytes]:
        options = self.options
        command = [
            sys.executable, "-m", "task.embedding", "--socket", str(self._socket), "--model", options.model,
            "--precision", options.precision, "--threads", str(options.threads),
        ]  # fmt: skip
        environment = {**_QUIET, **_PATIENT, **({} if options.model else _OFFLINE), **dict(options.environment)}
        environment["PYTHONPATH"] = str(_SOURCE)
        return subprocess.Popen(  # noqa: S603 - our own module, under the interpreter that runs us
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def _end(self, process: subprocess.Popen[bytes] | None) -> None:
        with self._starting:
            if process is self._process:  # another request that failed may have had it replaced
                self._kill()

    def _stop(self) -> None:
        with self._starting:
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
    import socket

    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


def _says_ready(process: subprocess.Popen[bytes], seconds: float) -> bool:
    assert process.stdout is not None
    told = select.poll()  # select() knows no files above 1024, and each stream that is answered takes some
    told.register(process.stdout, select.POLLIN)
    return bool(told.poll(seconds * 1000)) and process.stdout.readline() == b"ready\n"


def _request(texts: Sequence[str]) -> Frame:
    import orjson  # several times as fast as json, and all of it in one call that holds up the event loop

    whole = [text.encode(errors="replace").decode() for text in texts]  # half of a letter, as in "\ud800", is no text
    return Frame("embed", body=orjson.dumps(whole))


def _matrix(frame: Frame, rows: int) -> NDArray[np.float32]:
    import numpy as np

    if frame.facts["rows"] != rows:
        raise ToolError("The embedding process answered with another number of vectors than it was asked for.")
    return np.frombuffer(frame.body, dtype="<f4").reshape(rows, -1 if rows else 0)
