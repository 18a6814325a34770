"""Speak the Jupyter protocol with one kernel over its unix sockets."""

import asyncio
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from mcp_servers.python_interpreter.envelope import Envelope, Message, scalar

MAX_MESSAGE_BYTES = 64 * 2**20
QUEUED_MESSAGES = 64
PORTS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}
IDLE_SECONDS = 1.0  # a flooded kernel drops messages, including the "idle" one
RETRY_SECONDS = 0.05
Output = Callable[[Message], None]


@dataclass(frozen=True, slots=True)
class Reply:
    """How an execution ended: `ok`, or `error` with the exception's name and value."""

    status: str
    ename: str = ""
    evalue: str = ""


class KernelWire:
    """The three sockets a caller needs. Messages are signed with a key that only this kernel and we know."""

    def __init__(self, folder: Path, context: zmq.asyncio.Context) -> None:
        self._folder = folder
        key = secrets.token_hex(32)
        self._envelope = Envelope(key.encode())
        self._shell = self._connected(context, zmq.DEALER, PORTS["shell_port"])
        self._control = self._connected(context, zmq.DEALER, PORTS["control_port"])
        self._iopub = self._connected(context, zmq.SUB, PORTS["iopub_port"])
        self.connection = {
            "transport": "ipc", "ip": str(folder / "k"), "key": key, "signature_scheme": "hmac-sha256", **PORTS,
        }  # fmt: skip

    def connection_file(self) -> bytes:
        return json.dumps(self.connection).encode()

    async def ready(self) -> None:
        """Return when the kernel answers and its output arrives."""
        while True:
            asked = await self._send(self._shell, "kernel_info_request", {})
            idle = asyncio.ensure_future(self._idle(asked))
            done, _ = await asyncio.wait({idle}, timeout=RETRY_SECONDS)
            if done:
                break
            idle.cancel()
            await asyncio.wait({idle})
        while await self._shell.poll(0):
            await self._receive(self._shell)

    async def execute(self, code: str, output: Output, *, silent: bool = False) -> Reply:
        """Run the code and return when both its reply and the end of its output have come."""
        content = {
            "code": code, "silent": silent, "store_history": False, "user_expressions": {}, "allow_stdin": False,
            "stop_on_error": False,
        }  # fmt: skip
        asked = await self._send(self._shell, "execute_request", content)
        listening = asyncio.ensure_future(self._listen(asked, output))
        try:
            reply = await self._reply(asked)
            await asyncio.wait({listening}, timeout=IDLE_SECONDS)
        finally:
            listening.cancel()
            await asyncio.wait({listening})
        if not listening.cancelled():
            listening.result()
        return reply

    async def interrupt(self) -> None:
        await self._send(self._control, "interrupt_request", {})

    def close(self) -> None:
        for socket in (self._shell, self._control, self._iopub):
            socket.close(linger=0)

    def _connected(self, context: zmq.asyncio.Context, kind: int, port: int) -> zmq.asyncio.Socket:
        socket = context.socket(kind)
        socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        socket.setsockopt(zmq.RCVHWM, QUEUED_MESSAGES)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)  # the kernel binds later than we connect
        socket.setsockopt(zmq.LINGER, 0)
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(f"ipc://{self._folder / 'k'}-{port}")
        return socket

    async def _send(self, socket: zmq.asyncio.Socket, kind: str, content: dict[str, Any]) -> str:
        asked, frames = self._envelope.sealed(kind, content)
        await socket.send_multipart(frames)
        return asked

    async def _receive(self, socket: zmq.asyncio.Socket) -> Message:
        while True:
            message = self._envelope.opened(await socket.recv_multipart())
            if message is not None:  # else it was not signed by this kernel, or is no message at all
                return message

    async def _reply(self, asked: str) -> Reply:
        while True:
            message = await self._receive(self._shell)
            if message.parent == asked:
                content = message.content
                return Reply(*(scalar(content.get(name)) for name in ("status", "ename", "evalue")))

    async def _idle(self, asked: str) -> None:
        while not _ends(await self._receive(self._iopub), asked):
            pass

    async def _listen(self, asked: str, output: Output) -> None:
        while not _ends(message := await self._receive(self._iopub), asked):
            # Threads of earlier code still write under its name, and their output must be shown too.
            if message.parent == asked or message.kind == "stream":
                output(message)


def _ends(message: Message, asked: str) -> bool:
    said = message.content.get("execution_state")
    return message.kind == "status" and message.parent == asked and said == "idle"
