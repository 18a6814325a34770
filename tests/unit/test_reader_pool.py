"""Reader processes: what they read, what ends them, and that other files are not affected."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

import psutil
import pytest

from task.documents.extract import extract
from task.documents.model import Block, Extraction, Unreadable, UnsupportedFile
from task.documents.pool import NICE, ReaderLimits, ReaderPool
from task.documents.worker import DOCUMENTS
from task.errors import ToolError
from tests.support import pdfs
from tests.support.documents import SALES, csv_bytes
from tests.support.waiting import runs

ROOT = Path(__file__).parents[2]
REPORT = csv_bytes(SALES)
LARGE = b"Date,Category,Sales\n" + b"2025-10-05,A,1700\n" * 100_000
SLOW = pdfs.many_pages_pdf(40, pdfs.grid(68, 68, size=8))  # takes half a minute
ONE = Extraction((Block("[\n  1\n]"),))
SECONDS = 30

Pooled = Callable[..., ReaderPool]


@pytest.fixture
async def pooled() -> AsyncGenerator[Pooled]:
    pools: list[ReaderPool] = []

    def made(**limits: float) -> ReaderPool:
        pools.append(ReaderPool(ReaderLimits(**limits)))  # pyright: ignore[reportArgumentType]
        return pools[-1]

    async with asyncio.timeout(SECONDS):
        yield made
        for pool in pools:
            await pool.close()
    assert readers() == []


def readers() -> list[psutil.Process]:
    """The child processes that already run the reader, the oldest first."""
    found = [child for child in psutil.Process().children(recursive=True) if _is_reader(child)]
    return sorted(found, key=psutil.Process.create_time)


async def waiting(number: int = 2) -> list[psutil.Process]:
    """The readers, once there are so many: after a file the one that read it, and one that was started ahead."""
    while len(found := readers()) != number:
        await asyncio.sleep(0.01)
    return found


def _is_reader(process: psutil.Process) -> bool:
    try:
        # Not the sandbox around it, whose command lines name it too.
        return process.cmdline()[2:4] == ["-m", "task.documents.worker"]
    except psutil.NoSuchProcess:  # it has just ended
        return False


async def busy(number: int) -> list[psutil.Process]:
    """The readers, once this many of them compute."""
    while len(found := [reader for reader in readers() if reader.cpu_times().user > 1]) < number:
        await asyncio.sleep(0.01)
    return found


async def test_a_reader_gives_what_the_file_holds(pooled: Pooled) -> None:
    pool = pooled()
    files = {
        "a.csv": REPORT,
        "a.pdf": pdfs.text_pdf(3),
        "a.json": b'{"a": [1, 2]}',
        "a.txt": "Größe\n".encode("cp1252") * 3_000,
        "empty.csv": b"",
    }
    for name, content in files.items():
        found = extract(name, content)
        assert await pool.extraction(name, content) == found
    assert await waiting(2)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere readers have the priority of the agent")
async def test_readers_run_below_the_priority_of_the_agent(pooled: Pooled) -> None:
    assert await pooled().extraction("a.csv", REPORT)
    assert {reader.nice() for reader in await waiting(2)} == {NICE}


async def test_small_plain_text_needs_no_process(pooled: Pooled) -> None:
    assert await pooled().extraction("a.txt", b"A note.") == Extraction((Block("A note."),))
    assert readers() == []


async def test_a_refusal_travels_with_its_kind_and_text(pooled: Pooled) -> None:
    pool = pooled()
    with pytest.raises(Unreadable, match=r"'a\.pdf' cannot be read: it is encrypted"):
        await pool.extraction("a.pdf", pdfs.encrypted_pdf("x", "secret"))
    with pytest.raises(UnsupportedFile, match=r"'a\.csv' is not supported: this is binary data"):
        await pool.extraction("a.csv", bytes(range(256)) * 100)
    assert await waiting(2)


@pytest.mark.fault("readers: a worker that never ends")
async def test_a_reader_that_takes_too_long_is_killed_and_the_next_file_is_read(pooled: Pooled) -> None:
    pool = pooled(seconds=8)  # for a large file; this one is small
    with pytest.raises(ToolError, match=r"'slow\.pdf' could not be read: the reader ran out of time, 1 seconds\."):
        await pool.extraction("slow.pdf", SLOW)
    await waiting(1)
    assert await pool.extraction("a.json", b"[1]") == ONE


@pytest.mark.fault("readers: a worker that runs out of memory")
async def test_a_reader_that_takes_too_much_memory_ends_and_the_next_file_is_read(pooled: Pooled) -> None:
    pool = pooled(memory_bytes=256 * 2**20)
    with pytest.raises(ToolError, match=r"'large\.txt' could not be read: the reader ran out of memory\."):
        await pool.extraction("large.txt", b"a line of text\n" * 2**22)
    assert await pool.extraction("a.json", b"[1]") == ONE


@pytest.mark.fault("readers: a worker that is killed", case="killed")
@pytest.mark.fault("readers: a worker that crashes", case="crashed")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV], ids=["killed", "crashed"])
async def test_a_reader_that_is_killed_or_crashes_fails_its_file_only(pooled: Pooled, number: signal.Signals) -> None:
    pool = pooled()
    reading = asyncio.create_task(pool.extraction("slow.pdf", SLOW))
    (await busy(1))[0].send_signal(number)
    with pytest.raises(ToolError, match=r"'slow\.pdf' could not be read: the reader crashed on it"):
        await reading
    assert await pool.extraction("a.json", b"[1]") == ONE


@pytest.mark.fault("readers: a worker that is killed")
async def test_a_reader_that_dies_while_idle_is_replaced_without_a_failure(pooled: Pooled) -> None:
    pool = pooled()
    await pool.extraction("a.json", b"[1]")
    for reader in await waiting(2):
        reader.kill()
    await waiting(0)
    assert await pool.extraction("a.json", b"[1]") == ONE

    idle, _ = await waiting(2)
    idle.suspend()  # it appears alive and receives nothing
    reading = asyncio.create_task(pool.extraction("a.json", b"[1]"))
    await asyncio.wait({reading}, timeout=0.1)
    idle.kill()
    assert await reading == ONE


@pytest.mark.fault("readers: a worker that never ends")
async def test_cancelling_ends_the_reader_at_once(pooled: Pooled) -> None:
    reading = asyncio.create_task(pooled().extraction("slow.pdf", SLOW))
    await busy(1)
    reading.cancel()
    await asyncio.wait({reading}, timeout=10)
    assert reading.cancelled()
    await waiting(1)


@pytest.mark.fault("readers: a user whose files take all readers")
async def test_an_owner_has_a_share_of_the_readers_and_further_files_wait(pooled: Pooled) -> None:
    pool = pooled()
    slow = [asyncio.create_task(pool.extraction("slow.pdf", SLOW, owner="anna")) for _ in range(2)]
    assert len(await busy(2)) == 2
    third = asyncio.create_task(pool.extraction("a.json", b"[1]", owner="anna"))
    assert await pool.extraction("a.json", b"[1]", owner="bob") == ONE
    assert not third.done()
    slow[0].cancel()
    assert await third == ONE
    slow[1].cancel()
    await asyncio.wait(slow)


@pytest.mark.fault("sandbox: a document that takes over its reader")
async def test_a_reader_reads_the_files_of_one_owner_only(pooled: Pooled) -> None:
    pool = pooled()
    await pool.extraction("a.csv", LARGE, owner="anna")
    (annas, _), taken = await waiting(2), []
    for owner in ("bob", "anna", "carl", "anna"):
        before = annas.cpu_times().user
        await pool.extraction("a.csv", LARGE, owner=owner)
        taken.append(annas.cpu_times().user > before)
    assert taken == [False, True, False, True]


def test_the_limit_of_time_grows_with_the_file() -> None:
    limits = ReaderLimits(seconds=80)
    assert [limits.seconds_for(size << 20) for size in (0, 1, 4, 100)] == [10, 30, 80, 80]


async def test_the_event_loop_stays_responsive_while_files_are_read(pooled: Pooled) -> None:
    pool = pooled()
    await asyncio.gather(pool.extraction("a.csv", REPORT), pool.extraction("b.csv", REPORT))
    longest, last = 0.0, (started := time.perf_counter())
    reading = asyncio.gather(pool.extraction("large.csv", LARGE), pool.extraction("a.pdf", pdfs.many_pages_pdf(1_000)))
    while not reading.done():
        await asyncio.sleep(0.002)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    assert all(await reading)
    assert longest < (last - started) / 3  # the goal in seconds is measured by the benchmark on a quiet machine


@pytest.mark.fault("readers: a text longer than may be")
async def test_a_text_over_the_limit_is_refused(pooled: Pooled) -> None:
    with pytest.raises(ToolError, match=r"'a\.csv' holds more text than can be read"):
        await pooled(output_bytes=100).extraction("a.csv", REPORT)


async def test_a_reader_is_replaced_when_it_has_read_enough_and_ends_when_it_is_idle(pooled: Pooled) -> None:
    pool = pooled()
    await pool.extraction("a.json", b"[1]")
    first, _ = await waiting(2)
    for _ in range(DOCUMENTS):
        assert await pool.extraction("a.json", b"[1]") == ONE
    assert first not in readers()
    await pool.close()
    await pooled(idle_seconds=0.01).extraction("a.json", b"[1]")
    await waiting(1)


@pytest.mark.fault("sandbox: a document that takes over its reader")
async def test_a_reader_gets_no_secret_and_no_rights(pooled: Pooled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIAL_API_KEY", "a-secret-key")
    await pooled().extraction("a.json", b"[1]")
    for reader in await waiting(2):
        assert set(reader.environ()) <= {
            "LC_ALL", "MALLOC_TOP_PAD_", "OMP_NUM_THREADS", "OMP_THREAD_LIMIT", "OPENBLAS_NUM_THREADS", "PATH", "PWD"
        }  # fmt: skip
        status = dict(line.split(":\t") for line in Path(f"/proc/{reader.pid}/status").read_text().splitlines())
        assert (status["Seccomp"], status["NoNewPrivs"], int(status["CapEff"], 16)) == ("2", "1", 0)


@pytest.mark.fault("readers: a server that is killed while it reads")
async def test_no_reader_outlives_a_server_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "slow.pdf").write_bytes(SLOW)
    code = (
        "import asyncio, pathlib, sys\n"
        "from task.documents.pool import ReaderPool\n"
        "asyncio.run(ReaderPool().extraction('slow.pdf', pathlib.Path(sys.argv[1]).read_bytes()))\n"
    )
    server = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "slow.pdf")], cwd=ROOT)
    try:
        async with asyncio.timeout(SECONDS):
            (reader,) = await busy(1)
            os.kill(server.pid, signal.SIGKILL)
            server.wait(timeout=20)
            while runs(reader):
                await asyncio.sleep(0.01)
    finally:
        server.kill()
