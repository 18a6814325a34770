"""compose/balancer.conf under a real nginx, in front of agents on the loopback."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.compose import ROOT

START_SECONDS = 25
_SERVER = re.compile(r"^ *server agent(?:-2)?:5030(.*);\n", re.MULTILINE)


@asynccontextmanager
async def balancer(folder: Path, port: int, *agents: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """nginx on that port, once it listens; `agents` are addresses `http://host:port`, any number of them."""
    text = (ROOT / "compose" / "balancer.conf").read_text(encoding="utf-8")
    options = _SERVER.findall(text)
    assert len(set(options)) == 1, "compose/balancer.conf names its agents in another way"
    servers = "".join(f"    server {agent.removeprefix('http://')}{options[0]};\n" for agent in agents)
    text = _SERVER.sub("", _SERVER.sub(servers, text, count=1))
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}").replace("/tmp/", f"{folder}/")
    (folder / "nginx.conf").write_text(text, encoding="utf-8")
    command = ("nginx", "-e", "stderr", "-g", "daemon off;", "-c", str(folder / "nginx.conf"))
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
    try:
        async with asyncio.timeout(START_SECONDS):
            while not await _listens(port):
                assert process.returncode is None, "nginx does not start with the file"
                await asyncio.sleep(0.05)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), START_SECONDS)


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
