"""The product as a stranger installs it, from the wheel and from a clone: in an empty home, with three questions."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import aiohttp
import pytest

from task.llm.scripted import Reply, says, wants
from tests.support.chat_reader import chat_reader
from tests.support.document_turns import RAG, attached_urls, reads_the_excerpts
from tests.support.documents import manual
from tests.support.escapes.outcome import ORDINARY_UID
from tests.support.isolation import OUTSIDE
from tests.support.ports import free_port
from tests.support.up import ROOT, RunningProduct
from tests.support.upstream import Received, openai_upstream

pytestmark = [pytest.mark.system, pytest.mark.timeout(1800)]

KEPT = re.compile(r"(PIP|UV|SSL|LANG|LC)(_\w+)?|\w+_(proxy|PROXY)")
MOST_MEBIBYTES = 1144  # 1.2 GB: the program, the kernels' environment and the embedding model
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
MOST_OF_PIP = 2.5  # the first start, in units of the bare `pip install` before it
LIBRARIES = "numpy, pandas, scipy.stats, sklearn.ensemble, matplotlib.pyplot, plotly.express, openpyxl, docx, PIL"
CODE = f"""
import {LIBRARIES}
try:
    import task
except ModuleNotFoundError as error:
    print(error, 6 * 7)
"""


def model(received: Received) -> Reply:
    last = received.messages[-1]
    if last["role"] == "tool":
        return says(last["content"])
    text = last["content"]
    if "Excerpt [" in text:
        return reads_the_excerpts(received)
    if "plate" in text:
        return wants(RAG, request="How should I clean the plate?", file_url=attached_urls(received)[0])
    return wants("execute_code", code=CODE) if "code" in text else says("25 * 47 = 1175")


def tracked(*folders: str) -> list[Path]:
    """The project's files below these folders, as a clone has them."""
    listed = ["git", "ls-files", "-co", "--exclude-standard", *folders]
    names = map(Path, subprocess.check_output(listed, cwd=ROOT, text=True).splitlines())
    return [name for name in names if (ROOT / name).is_file()]


def cloned(folder: Path) -> Path:
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes((ROOT / name).read_bytes())
        (folder / name).chmod((ROOT / name).stat().st_mode)
    return folder


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that `make release` has built, or one that is built from an sdist, as pip does with an sdist."""
    dist = Path(OUTSIDE.get("DIST", tmp_path_factory.mktemp("built") / "dist"))
    if not dist.exists():
        build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
        clone = cloned(dist.with_name("clone"))
        subprocess.run([sys.executable, "-c", build, dist], cwd=clone, check=True, stdout=subprocess.DEVNULL)
        [sdist] = dist.glob("*.tar.gz")
        subprocess.run([*PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir", dist, sdist], check=True)
    return next(dist.glob("*.whl"))


@asynccontextmanager
async def started(home: Path, folder: Path, *command: str, **variables: str) -> AsyncGenerator[RunningProduct]:
    """The product of the home's owner, once its table is printed; of this machine it has programs and an index only."""
    kept = {name: value for name, value in OUTSIDE.items() if KEPT.fullmatch(name)}
    names = ("AGENT_PORT", "AGENT_CORE_PORT", "AGENT_SEARCH_PORT", "AGENT_INTERPRETER__PORT")
    environ = {**kept, **{name: str(free_port()) for name in names}, "HOME": str(home), **variables}
    owner = home.stat().st_uid if os.getuid() == 0 else None
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, env=environ, stdout=PIPE, stderr=STDOUT, user=owner, group=owner
    )
    product = RunningProduct(home, environ, process)
    reading = asyncio.create_task(product.read())
    try:
        await product.having("Ready in", 1200)
        yield product
    finally:
        await product.stop(signal.SIGTERM)  # make sends no other signal on
        await reading


async def answers(product: RunningProduct) -> list[str]:
    """What it answers to a question about a document and one that needs code, over DIAL, and to one over `/v1`."""
    key = (product.home / ".local/share/dial-agent/core.key").read_text().strip()
    agent, core = (f"http://127.0.0.1:{product.environ[name]}" for name in ("AGENT_PORT", "AGENT_CORE_PORT"))
    async with chat_reader(core, key) as reader:
        reader.seconds = 180  # the first answers of a new installation, on a busy machine
        file = await reader.upload("manual.txt", manual().encode(), "text/plain")
        found = await reader.ask("How should I clean the plate?", file)
        ran = await reader.ask("Run the code.")
    body = {"model": "general-purpose-agent", "messages": [{"role": "user", "content": "What is 25*47?"}]}
    async with aiohttp.ClientSession() as session, session.post(f"{agent}/v1/chat/completions", json=body) as response:
        return [found.text, ran.text, (await response.json())["choices"][0]["message"]["content"]]


def check(found: list[str]) -> None:
    searched, ran, calculated = found
    assert "Wash it in warm soapy water" in searched
    assert "No module named 'task' 42" in ran
    assert calculated == "25 * 47 = 1175"


def states(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file below the folder except byte code, which Python itself writes."""
    files = (path for path in folder.rglob("*") if path.suffix != ".pyc" and path.is_file())
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def mebibytes(*folders: Path) -> float:
    """What the folders take on disk, linked files once."""
    found = {(at.st_dev, at.st_ino): at.st_blocks for folder in folders for at in map(os.lstat, folder.rglob("*"))}
    return sum(found.values()) / 2**11  # a block has 512 bytes


async def test_an_installed_wheel_answers_in_an_empty_folder_and_writes_to_the_data_folder_only(
    wheel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, work, program = tmp_path / "home", tmp_path / "empty", tmp_path / "program"
    home.mkdir()
    work.mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", program], check=True)
    pip = [*PIP, "--python", program / "bin" / "python", "--quiet"]
    locked = re.findall(r"^\S+==.+(?= \\$)", (ROOT / "locks" / "agent.txt").read_text(), re.MULTILINE)
    (tmp_path / "versions.txt").write_text("\n".join(locked))
    before = perf_counter()
    subprocess.run([*pip, "install", "--no-compile", "--constraint", tmp_path / "versions.txt", wheel], check=True)
    installing, states_before = perf_counter() - before, states(program)
    subprocess.run([*pip, "check"], check=True)
    printed = subprocess.check_output([program / "bin/dial-agent", "--version"], cwd=work, text=True)
    assert printed == f"dial-agent {version('dial-general-purpose-agent')}\n"
    [packages] = program.glob("lib/python*/site-packages")
    missing = [name for name in tracked("task", "mcp_servers") if not (packages / name).is_file()]
    assert {name.name for name in missing} == {"Dockerfile"}

    path = f"{program / 'bin'}:/usr/local/bin:/usr/bin:/bin"  # no shims of other users' tools, which write to a home
    async with openai_upstream(then=model) as upstream:
        command, variables = (str(program / "bin/dial-agent"), "up"), {"OPENAI_BASE_URL": upstream.url, "PATH": path}
        before = perf_counter()
        async with started(home, work, *command, **variables) as product:
            starting = perf_counter() - before
            check(await answers(product))
    assert states(program) == states_before
    assert list(work.iterdir()) == []
    assert {path.name for path in home.iterdir()} <= {".local", ".cache"}
    size = mebibytes(program, home)
    with capsys.disabled():
        print(f"\nbare pip install {installing:.0f} s, first start {starting:.0f} s, on disk {size:.0f} MiB")
    assert size <= MOST_MEBIBYTES
    assert starting <= MOST_OF_PIP * installing

    subprocess.run([program / "bin/dial-agent", "init"], cwd=work, check=True, stdout=subprocess.DEVNULL)
    for file in filter(Path.is_file, work.rglob("*")):
        assert file.read_bytes() == (ROOT / file.relative_to(work)).read_bytes()
    assert (work / "docker-compose.yml").exists()


@pytest.mark.root
@pytest.mark.fault("installation: an ordinary user, whose home has blanks and non-ASCII letters")
async def test_uv_runs_the_wheel_for_an_ordinary_user(wheel: Path) -> None:
    with TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as name:  # byte code may still be written
        folder, home = Path(name), Path(name, "my hömé")
        folder.chmod(0o755)
        shutil.copy(wheel, folder)
        subprocess.run([*PIP, "install", "--quiet", "--target", folder / "uv", "uv"], check=True)
        home.mkdir(mode=0o700)
        os.chown(home, ORDINARY_UID, ORDINARY_UID)
        command = (f"{folder}/uv/bin/uv", "tool", "run", "--from", f"{folder}/{wheel.name}", "dial-agent", "up")
        variables = {"UV_PYTHON": "/usr/bin/python3", "PATH": "/usr/bin:/bin", "TMPDIR": str(home)}  # Debian's
        async with openai_upstream(then=model) as upstream:
            variables["OPENAI_BASE_URL"] = upstream.url
            async with started(home, home, *command, **variables) as product:
                check(await answers(product))


async def test_make_run_answers_in_a_clean_clone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clone, home = cloned(tmp_path / "clone"), tmp_path / "home"
    home.mkdir()
    command, before = ("make", "run", f"PYTHON={sys.executable}"), perf_counter()
    async with openai_upstream(then=model) as upstream:
        variables = {"OPENAI_BASE_URL": upstream.url, "PATH": os.environ["PATH"]}
        async with started(home, clone, *command, **variables) as product:
            starting = perf_counter() - before
            check(await answers(product))
    with capsys.disabled():
        print(f"\nmake run: {starting:.0f} s, on disk {mebibytes(clone, home):.0f} MiB")
