"""The wheel as a stranger installs it: an empty environment, an empty home, an empty folder, three questions."""

import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import aiohttp
import pytest

from task.llm.scripted import Reply, says, wants
from tests.support.chat_reader import chat_reader
from tests.support.document_turns import reads_the_file
from tests.support.documents import manual
from tests.support.up import ROOT, UNUSED_PORT, RunningProduct
from tests.support.upstream import Received, openai_upstream

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

MEBIBYTE = 2**20
MOST_MEBIBYTES = 1200  # program, kernels' environment, weights
MOST_OF_PIP = 1.5  # the first start, by the seconds of the bare `pip install` before it
LIBRARIES = "numpy, pandas, scipy.stats, sklearn.ensemble, matplotlib.pyplot, plotly.express, openpyxl, docx, PIL"
CODE = f"""
import {LIBRARIES}
try:
    import task
except ModuleNotFoundError as error:
    print(error, 6 * 7)
"""


@dataclass(frozen=True, slots=True)
class Installed:
    """`programs` of an environment that has the wheel, and how long the bare `pip install` took."""

    programs: Path
    seconds: float


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    listed = ["git", "ls-files", "-co", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).splitlines():
        if (ROOT / name).is_file():
            (folder / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "clone" / name).write_bytes((ROOT / name).read_bytes())
    python = folder / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    pip = [python, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    dist = Path(os.environ.get("DIST", folder / "dist"))  # `make release` has built it
    if "DIST" not in os.environ:
        subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", dist, folder / "clone"], check=True)
    [wheel] = dist.glob("*.whl")
    started = perf_counter()
    subprocess.run([*pip, "install", "--constraint", ROOT / "constraints.txt", wheel], check=True)
    return Installed(python.parent, perf_counter() - started)


def model(received: Received) -> Reply:
    last = received.messages[-1]
    if last["role"] == "tool":
        return says(last["content"])
    text = last["content"]
    if "plate" in text:
        return reads_the_file(received)
    return wants("execute_code", code=CODE) if "code" in text else says("25 * 47 = 1175")


def stated(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below the folder except byte code, which Python itself writes."""
    files = (path for path in folder.rglob("*") if path.suffix != ".pyc" and path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def mebibytes(*folders: Path) -> float:
    """What the folders take on disk, linked files once."""
    found = {(at.st_dev, at.st_ino): at.st_blocks for folder in folders for at in map(os.lstat, folder.rglob("*"))}
    return sum(found.values()) * 512 / MEBIBYTE


async def test_an_installed_wheel_answers_in_an_empty_folder_and_writes_to_the_data_folder_only(
    installed: Installed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, work, program = tmp_path / "home", tmp_path / "empty", installed.programs.parent
    home.mkdir()
    work.mkdir()
    kept = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "UV_", "SSL_", "LANG"))}
    ports = {f"AGENT_{name}PORT": UNUSED_PORT for name in ("", "CORE_")}
    ports |= {f"AGENT_{name}PORT": "0" for name in ("SEARCH_", "INTERPRETER__")}
    path = f"{installed.programs}:{os.environ['PATH']}"
    before = stated(program)
    async with openai_upstream(then=model) as upstream:
        variables = {**kept, **ports, "HOME": str(home), "PATH": path, "OPENAI_BASE_URL": upstream.url}
        command = ("dial-agent", "up", "--port", "0", "--core-port", "0", "--ready-file", str(home / "ready.json"))
        started = perf_counter()
        process = await asyncio.create_subprocess_exec(
            installed.programs / command[0], *command[1:], cwd=work, env=variables, stdout=PIPE, stderr=STDOUT
        )
        product = RunningProduct(home, variables, process)
        reading = asyncio.create_task(product.read())
        try:
            await product.having("Ready in", 900)
            seconds = perf_counter() - started
            ready = json.loads((home / "ready.json").read_text())
            key = (home / ".local/share/dial-agent/core.key").read_text().strip()
            async with chat_reader(ready["core"], key) as reader:
                file = await reader.upload("manual.txt", manual().encode(), "text/plain")
                found = await reader.ask("How should I clean the plate?", file)
                ran = await reader.ask("Run the code.")
            body = {"model": "general-purpose-agent", "messages": [{"role": "user", "content": "What is 25*47?"}]}
            url = f"{ready['agent']}/v1/chat/completions"
            async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
                answer = (await response.json())["choices"][0]["message"]["content"]
        finally:
            await product.stop()
            await reading
    assert "MICROWAVE OVEN" in found.text
    assert "No module named 'task' 42" in ran.text
    assert answer == "25 * 47 = 1175"
    assert stated(program) == before
    assert list(work.iterdir()) == []
    subprocess.run([installed.programs / "dial-agent", "init"], cwd=work, check=True, stdout=subprocess.DEVNULL)
    for file in filter(Path.is_file, work.rglob("*")):
        assert file.read_bytes() == (ROOT / file.relative_to(work)).read_bytes()
    assert (work / "docker-compose.yml").exists()
    assert {path.name for path in home.rglob("*") if path.parent == home} <= {".local", ".cache", "ready.json"}
    size = mebibytes(program, home)
    with capsys.disabled():
        print(f"\nbare pip install {installed.seconds:.0f} s, first start {seconds:.0f} s, on disk {size:.0f} MiB")
    assert size <= MOST_MEBIBYTES
    assert seconds <= MOST_OF_PIP * installed.seconds
