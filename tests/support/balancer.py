"""The sample configurations under the real HAProxy and nginx, in front of agents or interpreters on the loopback."""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.compose import ROOT
from tests.support.ports import listens

START_SECONDS = 25
# A first server of a list, with what is said of it, and the second one.
_AGENTS = re.compile(r"^ *server agent agent:5030(.*)\n *server agent-2 .*\n", re.MULTILINE)
_INTERPRETERS = re.compile(r"^ *server python-interpreter:8050(.*)\n *server python-interpreter-2.*\n", re.MULTILINE)


@asynccontextmanager
async def balancer(
    folder: Path, port: int, *servers_at: str, file: str = "balancer.conf", changes: Mapping[str, str] | None = None
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """HAProxy or nginx with this file of compose/ on that port, once it listens, before any number of servers.

    `servers_at` are addresses `http://host:port`; `changes` are texts of the file and what a test puts in their place.
    """
    text = (ROOT / "compose" / file).read_text(encoding="utf-8")
    addresses = [address.removeprefix("http://") for address in servers_at]
    own = {"bind :8080": f"bind 127.0.0.1:{port}"}
    if file == "balancer.conf":
        text, lists = _AGENTS.subn(lambda found: _agents(addresses, found[1]), text)
        command = ["haproxy", "-db", "-f", str(folder / file)]
    else:
        text, lists = _INTERPRETERS.subn(lambda found: "".join(f"server {at}{found[1]}\n" for at in addresses), text)
        command = ["nginx", "-e", "stderr", "-g", "daemon off;", "-c", str(folder / file)]
        own = {"listen 8080": f"listen 127.0.0.1:{port}", "/tmp/": f"{folder}/"}
    assert lists, f"compose/{file} names its servers in another way"
    for old, new in {**(changes or {}), **own}.items():
        assert old in text, f"compose/{file} has no {old!r}"
        text = text.replace(old, new)
    (folder / file).write_text(text, encoding="utf-8")
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(START_SECONDS):
            while not await listens(port):
                assert process.returncode is None, f"{command[0]} does not start with the file"
                await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), START_SECONDS)


def _agents(addresses: list[str], options: str) -> str:
    return "".join(
        f"  server agent-{number} {address}{options.replace('once/agent', f'once/agent-{number}')}\n"
        for number, address in enumerate(addresses)
    )
