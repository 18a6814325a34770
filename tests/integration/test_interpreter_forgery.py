"""Code that knows its kernel's key and sends messages of its own making: none of them spoils a call."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.support.interpreter import RunningInterpreter, Talk, running_interpreter

# `forge` signs and sends any frames, `shaped` a message that belongs to the running call.
FORGE = """
import json
kernel = get_ipython().kernel
session = kernel.session
def deep(levels):
    return b"[" * levels + b"]" * levels
def forge(*parts):
    kernel.iopub_socket.send_multipart([b"t", b"<IDS|MSG>", session.sign(list(parts)), *parts])
def shaped(kind, content):
    parent = json.dumps(kernel.get_parent()["header"], default=str).encode()
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    forge(json.dumps({"msg_type": kind}).encode(), parent, b"{}", content)
"""
FORGED = {
    "not objects": "forge(b'[]', b'[]', b'[]', b'[]')",
    "too few frames": "forge(b'{}')",
    "nested text": "shaped('stream', b'{\"text\": ' + deep(1000) + b'}')",
    "deeper than can be read": "shaped('stream', b'{\"text\": ' + deep(100_000) + b'}')",
    "a display without data": "shaped('display_data', {'data': 5})",
    "a picture of half a letter": "shaped('display_data', {'data': {'image/svg+xml': '\\ud800'}})",
    "a chart as deep as can be read": (
        "shaped('display_data', b'{\"data\": {\"application/vnd.plotly.v1+json\": ' + deep(1000) + b'}}')"
    ),
    "a display of nothing by name": "shaped('display_data', {'data': {}, 'transient': 'x'})",
    "an error that is a number": "shaped('error', {'traceback': 5})",
    "half a letter": "shaped('stream', {'name': 'stdout', 'text': '\\ud800'})",
    "a number of 5,000 digits": "shaped('stream', b'{\"text\": ' + b'9' * 5000 + b'}')",
    "a file name that is not UTF-8": "open(b'\\xff.txt', 'w').close()",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningInterpreter]:
    with running_interpreter(tmp_path_factory.mktemp("interpreter"), "--bare", "--spares", "0") as running:
        yield running


@pytest.mark.fault("interpreter: a kernel message forged by its code")
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
async def test_a_forged_message_does_not_spoil_a_call(server: RunningInterpreter, forged: str) -> None:
    async with server.client() as client:
        talk = Talk(client, "forging")
        answer = await talk.call("execute_code", code=f"{FORGE}\n{forged}\nprint('printed')\n6 * 7")
    assert not answer.is_error, answer.text
    assert answer.structured["result"] == "42"
    assert "printed" in answer.structured["stdout"]
