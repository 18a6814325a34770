"""A second network namespace, joined to this machine as docker joins a container: by a veth pair. Needs root."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from tests.support.waiting import until

PREFIX = "10.213.{}"
CALLS = """
import json, sys, urllib.error, urllib.request
def reply(method, url, headers, body):
    request = urllib.request.Request(url, body and json.dumps(body).encode(), headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()
print(json.dumps([reply(*call) for call in json.load(sys.stdin)]))
"""

Call = tuple[str, str, Mapping[str, str], Mapping[str, Any] | None]
"""Method, URL, headers and JSON body of a request."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """`gateway` is this machine's address as the namespace sees it."""

    gateway: str
    holder: int

    async def replies(self, calls: Sequence[Call]) -> list[tuple[int, str]]:
        """Status and body of each request, sent from inside."""
        inside = ("nsenter", "--target", str(self.holder), "--net", sys.executable, "-c", CALLS)
        return [tuple(reply) for reply in json.loads(await _run(*inside, given=json.dumps(calls)))]


@asynccontextmanager
async def second_network() -> AsyncGenerator[Namespace]:
    """The namespace with one way out, to this machine; it ends with the block, and takes its devices along."""
    holder = await asyncio.create_subprocess_exec("unshare", "--net", "cat", stdin=asyncio.subprocess.PIPE)
    try:
        subnet, outer, inner = PREFIX.format(os.getpid() % 256), f"ve{os.getpid()}a", f"ve{os.getpid()}b"
        own = os.readlink("/proc/self/ns/net")
        await until(lambda: os.readlink(f"/proc/{holder.pid}/ns/net") != own)
        enter = ("nsenter", "--target", str(holder.pid), "--net")
        await _run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", str(holder.pid))
        await _run("ip", "address", "add", f"{subnet}.1/24", "dev", outer)
        await _run("ip", "link", "set", outer, "up")
        await _run(*enter, "ip", "address", "add", f"{subnet}.2/24", "dev", inner)
        await _run(*enter, "ip", "link", "set", inner, "up")
        yield Namespace(f"{subnet}.1", holder.pid)
    finally:
        holder.kill()
        await holder.wait()


async def _run(*command: str, given: str = "") -> str:
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, error = await asyncio.wait_for(process.communicate(given.encode()), 60)
    assert process.returncode == 0, f"{' '.join(command[:6])}: {error.decode()}"
    return out.decode()
