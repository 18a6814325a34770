"""Speak the Jupyter protocol with one kernel over its unix sockets."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from jupyter_client.session import Session

MAX_MESSAGE_BYTES = 64 * 2**20
QUEUED_MESSAGES = 64
PORTS = {"shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5}
IDLE_SECONDS = 1.0  # a flooded kernel drops messages, the one that says "idle" too
RETRY_SECONDS = 0.05
Output = Callable[[str, dict[str, Any]], None]  # (message type, content)


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
        key = secrets.token_bytes(32).hex()
        self._session = Session(key=key.encode(), signature_scheme="hmac-sha256")
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
            heard = asyncio.ensure_future(self._idle(asked))
            done, _ = await asyncio.wait({heard}, timeout=RETRY_SECONDS)
            if done:
                break
            heard.cancel()
            await asyncio.wait({heard})
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
        message = self._session.msg(kind, content)
        await socket.send_multipart(self._session.serialize(message))
        return str(message["header"]["msg_id"])

    async def _receive(self, socket: zmq.asyncio.Socket) -> dict[str, Any]:
        while True:
            frames = await socket.recv_multipart()
            try:
                _, parts = self._session.feed_identities(frames)
                return self._session.deserialize(parts)
            except (ValueError, KeyError, TypeError, IndexError):  # unsigned, or no message at all: not ours
                continue

    async def _reply(self, asked: str) -> Reply:
        while True:
            message = await self._receive(self._shell)
            if message["parent_header"].get("msg_id") == asked:
                content = message["content"]
                return Reply(
                    str(content.get("status")), str(content.get("ename", "")), str(content.get("evalue", ""))
                )  # fmt: skip

    async def _messages(self) -> AsyncGenerator[tuple[str, str, dict[str, Any]]]:
        while True:
            message = await self._receive(self._iopub)
            parent = str((message.get("parent_header") or {}).get("msg_id", ""))
            yield str(message["header"]["msg_type"]), parent, message["content"]

    async def _idle(self, asked: str) -> None:
        async for kind, parent, content in self._messages():
            if _ends(kind, parent, content, asked):
                return

    async def _listen(self, asked: str, output: Output) -> None:
        async for kind, parent, content in self._messages():
            if _ends(kind, parent, content, asked):
                return
            # Threads of earlier code go on writing under its name; what they write belongs to somebody's eyes too.
            if parent == asked or kind == "stream":
                output(kind, content)


def _ends(kind: str, parent: str, content: dict[str, Any], asked: str) -> bool:
    return kind == "status" and parent == asked and content.get("execution_state") == "idle"
