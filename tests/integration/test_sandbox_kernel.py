"""A Jupyter kernel over Unix sockets starts in each tier, computes, draws, and ends with its run."""

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

from mcp_servers.sandbox import Policy, command, kill_marked, marked, new_mark, python_paths
from mcp_servers.sandbox.policy import TierName

PYTHON = str(Path(__file__).parents[2] / ".venv-kernel" / "bin" / "python")
PATIENCE = 40
PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 3, 2])\nplt.show()"


@asynccontextmanager
async def kernel(folder: str, tier: TierName, mark: int) -> AsyncGenerator[AsyncKernelClient]:
    environment = {
        "PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "MPLCONFIGDIR": folder, "IPYTHONDIR": folder,
        "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }  # fmt: skip
    policy = Policy(folder, (folder,), python_paths(PYTHON), environment=environment, tier=tier, mark=mark)
    argv = command(policy, [PYTHON, "-m", "ipykernel_launcher", "-f", f"{folder}/c.json"])
    manager = AsyncKernelManager(transport="ipc", ip=f"{folder}/k", connection_file=f"{folder}/c.json")
    manager._kernel_spec = KernelSpec(argv=argv, interrupt_mode="message")
    await manager.start_kernel(stderr=asyncio.subprocess.DEVNULL)
    client = manager.client()
    client.start_channels()
    try:
        await client.wait_for_ready(timeout=PATIENCE)
        yield client
    finally:
        client.stop_channels()
        await manager.shutdown_kernel(now=True)
        await asyncio.to_thread(kill_marked, mark)


async def shown(client: AsyncKernelClient, code: str) -> list[str]:
    """What the code shows: media types of displays and results, text of streams and errors."""
    output: list[str] = []

    def note(message: dict[str, dict[str, object]]) -> None:
        content = message["content"]
        output.extend(content.get("data", ()))  # pyright: ignore[reportArgumentType]
        output.extend(str(content[key]) for key in ("text", "evalue") if key in content)

    await client.execute_interactive(code, output_hook=note, timeout=PATIENCE, allow_stdin=False)
    return output


async def tried(tier: TierName) -> None:
    mark = new_mark()
    with tempfile.TemporaryDirectory(prefix="k", dir="/tmp") as folder:
        async with asyncio.timeout(PATIENCE * 2), kernel(folder, tier, mark) as client:
            assert await shown(client, "6 * 7") == ["text/plain"]
            assert "image/png" in await shown(client, PLOT)
            assert await shown(client, "open('out.txt', 'w').write('x'); print('written')") == ["written\n"]
            assert os.path.exists(f"{folder}/out.txt")
            denied = await shown(client, f"open({str(Path(__file__))!r})")
            assert any(word in denied[0] for word in ("Permission denied", "No such file"))
            assert marked(mark)
    assert marked(mark) == []


async def test_a_kernel_draws_beside_landlock() -> None:
    await tried("landlock")


@pytest.mark.system
async def test_a_kernel_draws_in_bubblewrap() -> None:
    await tried("bubblewrap")
