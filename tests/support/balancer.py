"""The sample configurations under a real nginx, in front of agents or interpreters on the loopback."""

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.compose import ROOT
from tests.support.ports import listens

START_SECONDS = 25
_SERVER = re.compile(r"^ *server (?:agent|python-interpreter)(?:-2)?:\d+(.*);\n", re.MULTILINE)


@asynccontextmanager
async def balancer(
    folder: Path, port: int, *servers_at: str, file: str = "balancer.conf", changes: Mapping[str, str] | None = None
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """nginx with this file of compose/ on that port, once it listens, before any number of servers.

    `servers_at` are addresses `http://host:port`; `changes` are texts of the file and what a test puts in their place.
    """
    text = (ROOT / "compose" / file).read_text(encoding="utf-8")
    options = _SERVER.findall(text)
    assert len(set(options)) == 1, f"compose/{file} names its servers in another way"
    servers = "".join(f"    server {agent.removeprefix('http://')}{options[0]};\n" for agent in servers_at)
    text = _SERVER.sub("", _SERVER.sub(servers, text, count=1))
    for old, new in {**(changes or {}), "listen 8080": f"listen 127.0.0.1:{port}", "/tmp/": f"{folder}/"}.items():
        assert old in text, f"compose/{file} has no {old!r}"
        text = text.replace(old, new)
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    command = ("nginx", "-e", "stderr", "-g", "daemon off;", "-c", str(folder / "nginx.conf"))
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(START_SECONDS):
            while not await listens(port):
                assert process.returncode is None, "nginx does not start with the file"
                await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), START_SECONDS)
