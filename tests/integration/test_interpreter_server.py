"""The interpreter server as agents meet it: state, outputs, and every way code can go wrong, in real kernels."""

import asyncio
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from uuid import uuid4

import httpx
import psutil
import pytest
from aiohttp import web

from task.tools.mcp.connection import conversation_meta
from task.tools.py_interpreter.execution import SessionMemo
from task.tools.py_interpreter.interpreter_server import InterpreterServer, Way
from tests.support.core_peers import peer
from tests.support.interpreter import TOKEN, RunningInterpreter, Talk, running_interpreter
from tests.support.waiting import until

KERNEL, FRESH, MADE = (f"dial-general-purpose-agent/{key}" for key in ("kernel", "fresh", "made"))
BRIEFLY = {"dial-general-purpose-agent/seconds": 0.5}
UNTIL_RELEASED = "open('started', 'w').close()\nwhile not os.path.exists('go'): time.sleep(0.02)\n'done'"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RunningInterpreter]:
    with running_interpreter(tmp_path_factory.mktemp("interpreter"), "--bare") as running:
        yield running


@pytest.fixture
async def talk(server: RunningInterpreter) -> AsyncGenerator[Talk]:
    async with server.client() as client:
        talk = Talk(client, uuid4().hex)
        yield talk
        await talk.call("clear_session")


@pytest.fixture
async def same(server: RunningInterpreter) -> AsyncGenerator[Talk]:
    """A conversation that tests share which leave it as it was."""
    async with server.client() as client:
        yield Talk(client, "the same")


def client_of(server: RunningInterpreter) -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, base_url=server.origin, headers={"Authorization": f"Bearer {TOKEN}"})


async def fetch(server: RunningInterpreter, result: dict[str, str], path: str) -> httpx.Response:
    async with client_of(server) as http:
        return await http.get(f"{result['files_path']}{path}")


async def release(server: RunningInterpreter, result: dict[str, str]) -> None:
    async with client_of(server) as http:
        await http.put(f"{result['files_path']}inputs/go", content=b"")


@pytest.mark.fault("interpreter: two agents on one session")
async def test_variables_stay_and_parallel_calls_take_turns(server: RunningInterpreter, talk: Talk) -> None:
    await talk.run("n = 0")
    async with server.client() as second:
        other_agent = Talk(second, talk.conversation)
        await asyncio.gather(*((talk if turn % 2 else other_agent).run("n += 1") for turn in range(8)))
    result = await talk.run("print('so far', n)\nn * 2")
    assert (result["stdout"], result["result"]) == ("so far 8\n", "16")
    assert (result["error"], result["ending"], result["generation"]) == (None, "done", 1)


async def test_tables_pictures_charts_and_files_come_back(server: RunningInterpreter, same: Talk) -> None:
    code = """
import pandas as pd, matplotlib.pyplot as plt
frame = pd.DataFrame({"name": ["a|b", "c"], "value": [1, 2]})
frame.to_csv("table.csv", index=False)
plt.bar(frame.name, frame.value)
plt.show()
display({"application/vnd.plotly.v1+json": {"data": [], "layout": {}}}, raw=True)
frame
"""
    result = await same.run(code)
    assert result["result"].splitlines()[0:3] == ["|  | name | value |", "| --- | --- | --- |", "| 0 | a\\|b | 1 |"]
    picture, chart, table = result["files"]
    assert [file["mime_type"] for file in (chart, table)] == ["application/vnd.plotly.v1+json", "text/csv"]
    assert (await fetch(server, result, picture["path"])).content.startswith(b"\x89PNG")
    assert (await fetch(server, result, table["path"])).text == "name,value\na|b,1\nc,2\n"
    [read] = await same.client.read(table["uri"], max_bytes=1000)
    assert read.content == b"name,value\na|b,1\nc,2\n"


async def test_long_tables_and_long_output_are_cut_and_kept_whole_as_a_file(
    server: RunningInterpreter, same: Talk
) -> None:
    result = await same.run("print('x' * 200_000)\nimport pandas as pd\npd.DataFrame({'n': range(1000)})")
    assert result["truncated"]
    assert len(result["stdout"]) < 90_000
    assert "characters left out" in result["stdout"]
    assert "[50 of 1000 rows, 1 of 1 columns]" in result["result"]
    [log] = result["files"]
    assert len((await fetch(server, result, log["path"])).content) == 200_001


@pytest.mark.fault("interpreter: input()")
@pytest.mark.fault("interpreter: code that takes all memory")
async def test_errors_of_the_code_come_back_as_plain_tracebacks_and_the_session_goes_on(same: Talk) -> None:
    error = (await same.run("1 / 0"))["error"]
    assert error["ename"] == "ZeroDivisionError"
    assert "\x1b" not in error["traceback"]
    asked = await same.run("input('name?')")
    assert (asked["error"]["ename"], asked["ending"]) == ("StdinNotImplementedError", "done")

    result = await same.run("x = 5\ny = bytearray(10**12)")
    assert (result["error"]["ename"], result["state_lost"]) == ("MemoryError", False)
    assert (await same.run("x"))["result"] == "5"


@pytest.mark.fault("interpreter: an endless loop")
async def test_a_long_loop_is_interrupted_and_its_variables_stay(same: Talk) -> None:
    result = await same.run("kept = 7\nwhile True: pass", meta=BRIEFLY)
    assert (result["timed_out"], result["state_lost"], result["error"]["ename"]) == (True, False, "KeyboardInterrupt")
    assert "stopped after 0.5 s" in result["notes"][0]
    assert (await same.run("kept"))["result"] == "7"


@pytest.mark.fault("interpreter: C code that ignores interrupts")
async def test_code_that_ignores_interrupts_is_killed_and_the_loss_is_reported(talk: Talk) -> None:
    await talk.run("open('kept.txt', 'w').write('still here'); x = 1")
    result = await talk.run("sum(range(10**12))", meta=BRIEFLY)
    assert (result["timed_out"], result["state_lost"]) == (True, True)
    assert "All variables, imports and functions of this conversation are lost" in result["notes"][1]
    after = await talk.run("print(open('kept.txt').read(), 'x' in dir())")
    assert (after["stdout"], after["generation"], after["state_lost"]) == ("still here False\n", 2, False)


@pytest.mark.fault("interpreter: endless output")
async def test_endless_output_is_stopped_and_the_session_continues(same: Talk) -> None:
    result = await same.run("while True: print('y' * 100_000)")
    assert (result["ending"], result["truncated"]) == ("flooded", True)
    assert (await same.run("'fine'"))["result"] == "'fine'"


@pytest.mark.fault("interpreter: a kernel that is killed")
@pytest.mark.parametrize("death", ["os.kill(os.getpid(), 9)", "os._exit(3)", "ctypes.string_at(0)"])
async def test_a_kernel_that_dies_is_reported_and_replaced(death: str, talk: Talk) -> None:
    result = await talk.run(f"import os, ctypes\n{death}")
    assert (result["ending"], result["state_lost"]) == ("died", True)
    assert (await talk.run("1 + 1"))["result"] == "2"


@pytest.mark.fault("interpreter: a kernel that is killed")
async def test_a_kernel_that_dies_between_two_calls_is_reported_in_the_next(talk: Talk) -> None:
    await talk.run("import threading, os; threading.Timer(0.05, os._exit, [1]).start()")
    await asyncio.sleep(1)  # its own clock, not ours
    result = await talk.run("'back'")
    assert (result["result"], result["state_lost"], result["generation"]) == ("'back'", True, 2)
    assert "ended between two calls" in result["notes"][0]


@pytest.mark.fault("interpreter: a fork bomb")
async def test_a_fork_bomb_stays_in_its_session_and_is_gone_with_it(talk: Talk) -> None:
    code = "import os, time\nwhile True:\n  try:\n    if os.fork() == 0: time.sleep(99)\n  except OSError: pass"
    folder = Path((await talk.run("import os; os.getcwd()"))["result"].strip("'")).parent
    result = await talk.run(code, meta=BRIEFLY)
    assert result["timed_out"]
    assert (await talk.run("'alive'"))["result"] == "'alive'"
    assert living(folder.name)
    await talk.call("clear_session")
    await until(lambda: not living(folder.name))


@pytest.mark.fault("interpreter: processes that leave their group")
async def test_processes_that_leave_their_group_end_with_the_session(talk: Talk) -> None:
    seconds = f"{time.time_ns() % 10**6 + 10**6}"
    await talk.run(f"import subprocess; subprocess.Popen(['sleep', '{seconds}'], start_new_session=True)")
    await until(lambda: living(seconds))
    await talk.call("clear_session")
    await until(lambda: not living(seconds))


def living(word: str) -> list[int]:
    """The processes with the word in their command line; one that was killed has none, also before it is reaped."""
    found = psutil.process_iter(["cmdline"])
    return [process.pid for process in found if any(word in part for part in process.info["cmdline"] or [])]


@pytest.mark.fault("interpreter: background threads")
async def test_threads_that_keep_writing_do_not_disturb_later_calls(same: Talk) -> None:
    code = """
import threading, time
def chatter():
    for number in range(40):
        print("tick", number); time.sleep(0.01)
threading.Thread(target=chatter, daemon=True).start()
"""
    await same.run(code)
    results = [await same.run(f"{number} * 2") for number in range(5)]
    assert [result["result"] for result in results] == ["0", "2", "4", "6", "8"]
    assert [result["error"] for result in results] == [None] * 5


@pytest.mark.fault("interpreter: a deleted working directory")
async def test_a_deleted_working_directory_is_there_again(talk: Talk) -> None:
    await talk.run("import os, shutil\nopen('a', 'w').close()\nshutil.rmtree(os.getcwd(), ignore_errors=True)")
    result = await talk.run("open('b.txt', 'w').write('new'); import os; os.listdir('.')")
    assert result["result"] == "['b.txt']"
    assert [file["name"] for file in result["files"]] == ["b.txt"]


@pytest.mark.fault("interpreter: links, sockets and pipes in the outputs")
async def test_only_plain_new_files_are_handed_over(server: RunningInterpreter, same: Talk) -> None:
    code = """
import os, socket, pathlib, shutil
os.makedirs("odd"); os.chdir("odd")
pathlib.Path("plain.txt").write_text("hello"); pathlib.Path(".hidden").write_text("h")
os.symlink("/etc/passwd", "link.txt"); os.symlink("/", "folder")
os.mkfifo("pipe")
try: os.link("plain.txt", "hard.txt")
except OSError: pass
try: socket.socket(socket.AF_UNIX).bind("socket")
except OSError: pass
os.makedirs("sub/.git"); pathlib.Path("sub/.git/x").write_text("x"); pathlib.Path("sub/y.txt").write_text("y")
os.chdir("..")
"""
    result = await same.run(code)
    assert {file["name"] for file in result["files"]} - {"odd/plain.txt"} == {"odd/sub/y.txt"}
    for path in ("files/odd/link.txt", "files/odd/folder/etc/passwd", "files/odd/pipe", "files/odd/hard.txt",
                 "files/odd", "files/../shown/x", "files/%2e%2e/home", "log/x"):  # fmt: skip
        assert (await fetch(server, result, path)).status_code == 404


@pytest.mark.fault("interpreter: file names that are not UTF-8")
@pytest.mark.fault("interpreter: half characters in output and errors")
async def test_names_and_output_that_are_no_text_fail_no_call(talk: Talk) -> None:
    code = r"""
import os
os.mkdir(b"b\xe4d")
for name in (b"\xff.txt", b"b\xe4d/x.csv", "gr\xfcn.txt"):
    open(name, "w").close()
"""
    result = await talk.run(code)
    assert [file["name"] for file in result["files"]] == ["grün.txt"]
    [note] = result["notes"]
    assert "2 new files" in note
    assert "rename" in note
    listed = (await talk.call("list_session_files")).structured
    assert [file["name"] for file in listed["files"]] == ["grün.txt"]

    result = await talk.run("print('\\udcff out'); display('\\udcff shown'); '\\udcff result'")
    assert "out" in result["stdout"]
    raised = await talk.run("raise ValueError('\\udcff why')")
    assert "why" in raised["error"]["evalue"]


@pytest.mark.fault("interpreter: code that reaches for network, files and processes outside")
async def test_code_reaches_neither_network_nor_foreign_files(server: RunningInterpreter, same: Talk) -> None:
    code = f"""
import os, socket
def tried(what):
    try: return what() or "reached"
    except Exception as error: return type(error).__name__
print(tried(lambda: socket.create_connection(("127.0.0.1", {server.port}), 1)))
print(tried(lambda: open("/etc/shadow").read()))
print(tried(lambda: open("/usr/evil", "w")))
print(tried(lambda: open("/proc/{server.process.pid}/environ").read()))
print(tried(lambda: os.kill({server.process.pid}, 0)))
print([name for name in os.environ if "TOKEN" in name or "KEY" in name])
"""
    result = await same.run(code)
    assert result["sandbox_tier"] in ("bubblewrap", "landlock")
    assert "reached" not in result["stdout"]
    assert result["stdout"].endswith("[]\n")


@pytest.mark.fault("interpreter: a cancelled call")
async def test_a_cancelled_call_stops_the_code_and_the_session_continues(same: Talk) -> None:
    await same.run("import time; n = 0")
    for seconds in (0.1, 1, 10):  # how long it takes until the code runs is not to be seen from here
        call = asyncio.create_task(same.run("while True: n += 1; time.sleep(0.01)"))
        await asyncio.wait({call}, timeout=seconds)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(20):
            ran = await same.run("n > 0")
        if ran["result"] == "True":
            break
    assert (ran["result"], ran["generation"]) == ("True", 1)


async def test_a_cleared_session_is_deleted_although_who_cleared_it_has_left(server: RunningInterpreter) -> None:
    async with server.client() as client, asyncio.timeout(40):
        for seconds in (0.005, 0.01, 0.02):
            talk = Talk(client, uuid4().hex)
            folder = Path((await talk.run("import os; os.getcwd()"))["result"].strip("'"))
            assert folder.is_dir()
            clearing = asyncio.create_task(talk.call("clear_session"))
            await asyncio.wait({clearing}, timeout=seconds)
            clearing.cancel()
            await asyncio.wait({clearing})
            await talk.call("clear_session")  # the first call may not have come to the server
            while folder.exists():
                await asyncio.sleep(0.02)


@pytest.mark.fault("interpreter: a link where an input goes")
async def test_files_go_in_once_per_version_and_never_through_a_link(server: RunningInterpreter, same: Talk) -> None:
    inputs = {"dial-general-purpose-agent/inputs": {"data.csv": "v1"}}
    asked = await same.run("print(open('data.csv').read())", meta=inputs)
    assert asked["missing"] == ["data.csv"]
    place = f"{asked['files_path']}inputs"
    async with client_of(server) as http:
        sent = await http.put(f"{place}/data.csv?version=v1", content=b"a,b\n" * 500_000)
        assert sent.json() == {"name": "data.csv", "size": 2_000_000}
        await same.run("import os; os.remove('data.csv'); os.symlink('/etc/passwd', 'data.csv'); os.mkdir('dir')")
        assert (await http.put(f"{place}/data.csv?version=v1", content=b"a,b\n")).status_code == 200
        assert (await http.put(f"{place}/dir", content=b"x")).status_code == 409
        assert (await http.put(f"{place}/.bashrc", content=b"x")).status_code == 400
    result = await same.run("print(open('data.csv').read(), os.path.islink('data.csv'))", meta=inputs)
    assert (result["stdout"], result["files"]) == ("a,b\n False\n", [])


@pytest.mark.fault("interpreter: a session that another interpreter server has continued")
async def test_a_session_that_the_server_does_not_have_is_refused_until_a_new_one_is_accepted(talk: Talk) -> None:
    lost = {KERNEL: "server-that-is-gone.0123"}
    await talk.run("x = 'of another branch'")
    refused = await talk.call("execute_code", code="x = 1", meta=lost)
    assert (refused.is_error, refused.structured) == (True, {"refused": "unknown"})
    accepted = {**lost, FRESH: True}
    first, second = await asyncio.gather(
        *(talk.run(f"{name} = 1; sorted({{'x', 'a', 'b'}} & set(dir()))", meta=accepted) for name in "ab")
    )
    assert (first["state_lost"], second["state_lost"]) == (True, True)
    assert {first["result"], second["result"]} in ({"['a']", "['a', 'b']"}, {"['b']", "['a', 'b']"})
    assert "the interpreter server that kept them has stopped" in first["notes"][0]
    assert "Files are gone too" in min((first, second), key=lambda ran: len(ran["result"]))["notes"][0]
    assert first["kernel"] == second["kernel"]
    after = await talk.run("(a, b)", meta={KERNEL: first["kernel"]})
    assert (after["result"], after["notes"]) == ("(1, 1)", [])


@pytest.mark.fault("interpreter: files that are put back late, or outside the working directory")
async def test_files_of_a_lost_session_go_back_before_its_first_call_and_never_over_newer_ones(
    server: RunningInterpreter, talk: Talk
) -> None:
    made = {MADE: {"sub/made.txt": "v1"}}
    asked = await talk.run("open('sub/made.txt').read()", meta=made)
    assert (asked["missing"], asked["restore"]) == ([], ["sub/made.txt"])
    async with client_of(server) as http:
        place = f"{asked['files_path']}files"
        for wrong in ("/.hidden/x", "/a/%2e%2e/b", "/" + "x/" * 40 + "x", "/sub//x"):
            assert (await http.put(place + wrong, content=b"x")).status_code in (400, 404)
        assert (await http.put(f"{place}/sub/made.txt?version=v1", content=b"old")).status_code == 200
        ran = await talk.run("print(open('sub/made.txt').read()); open('sub/made.txt', 'w').write('new')", meta=made)
        assert ran["stdout"] == "old\n"
        assert (await http.put(f"{place}/sub/made.txt?version=v1", content=b"old")).status_code == 200
    assert (await talk.run("open('sub/made.txt').read()", meta={MADE: {"other.txt": "v1"}}))["result"] == "'new'"


@pytest.mark.fault("interpreter: no token, a wrong token, another host")
async def test_requests_without_the_token_or_with_another_host_name_are_refused(server: RunningInterpreter) -> None:
    async with httpx.AsyncClient(trust_env=False, base_url=server.origin) as http:
        assert (await http.get("/health")).json()["sandbox_tier"] in ("bubblewrap", "landlock")
        assert (await http.post("/mcp", json={})).status_code == 401
        assert (await http.get("/sessions/x/files/y")).status_code == 401
        assert (await http.put("/sessions/x/inputs/y", headers={"Authorization": "Bearer no"})).status_code == 401
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert (await http.get("/sessions/x/files/y", headers=right)).status_code == 404
        assert (await http.get("/sessions/x/files/y", headers=right | {"Host": "evil.example"})).status_code == 421
        assert (await http.get("/sessions/x/files/y", headers=right | {"Origin": "http://x"})).status_code == 403


async def test_a_call_without_a_conversation_has_its_own_session_and_says_so(server: RunningInterpreter) -> None:
    async with server.client() as client:
        first = await client.call("execute_code", {"code": "x = 1"})
        second = await client.call("execute_code", {"code": "'x' in dir()"})
    assert "next call starts from scratch" in first.text
    assert second.structured["result"] == "False"


@pytest.mark.fault("interpreter: a restarted interpreter server")
async def test_a_restarted_server_reports_that_the_variables_are_lost(tmp_path: Path) -> None:
    with running_interpreter(tmp_path, "--spares", "0", "--bare") as first:
        async with first.client() as client:
            await Talk(client, "c").run("x = 42")
    with running_interpreter(tmp_path, "--spares", "0", "--bare", port=first.port) as second:
        async with second.client() as client:
            talk = Talk(client, "c")
            result = await talk.run("'x' in dir()")
            assert (result["result"], result["state_lost"], result["generation"]) == ("False", True, 2)
            assert "the interpreter server was restarted" in result["notes"][0]
            assert not (await talk.run("1"))["state_lost"]


@pytest.mark.fault("interpreter: more sessions than there may be")
@pytest.mark.system
async def test_the_oldest_session_makes_room_and_an_unused_one_ends(tmp_path: Path) -> None:
    options = ("--spares", "0", "--bare", "--sessions", "1", "--idle-minutes", "0.01")
    with running_interpreter(tmp_path, *options) as server:
        async with server.client() as client:
            first, second = Talk(client, "first"), Talk(client, "second")
            await first.run("x = 1")
            await second.run("x = 2")
            assert "make room for others" in (await first.run("1"))["notes"][0]
            async with asyncio.timeout(20):
                while await sessions(server):
                    await asyncio.sleep(0.05)
            assert "not used for a long time" in (await first.run("1"))["notes"][0]


async def test_sessions_that_come_at_once_are_no_more_than_allowed(tmp_path: Path) -> None:
    with running_interpreter(tmp_path, "--spares", "0", "--bare", "--sessions", "1") as server:
        async with server.client() as client:
            results = await asyncio.gather(
                *(Talk(client, name, name).call("execute_code", code="import time; time.sleep(0.5)") for name in "abcd")
            )
            assert await sessions(server) == 1
    assert "every Python session is busy" in "".join(result.text for result in results)


@pytest.mark.fault("interpreter: one person who opens session after session")
@pytest.mark.system
async def test_one_person_has_at_most_half_of_the_sessions_and_ends_nobody_elses(tmp_path: Path) -> None:
    with running_interpreter(tmp_path, "--spares", "0", "--bare", "--sessions", "2") as server:
        async with server.client() as client, asyncio.timeout(60):
            other, greedy = Talk(client, "theirs", "other"), Talk(client, "first", "greedy")
            await other.run("kept = 1")
            place = await greedy.run("import os, time")
            busy = asyncio.create_task(greedy.run(UNTIL_RELEASED))
            while (await fetch(server, place, "files/started")).status_code != 200:
                await asyncio.sleep(0.02)
            refused = await Talk(client, "second", "greedy").call("execute_code", code="2")
            assert "every Python session is busy" in refused.text
            await release(server, place)
            assert (await busy)["result"] == "'done'"
            assert (await Talk(client, "third", "greedy").run("3"))["result"] == "3"
            assert (await other.run("kept"))["result"] == "1"
            assert await sessions(server) == 2


@pytest.mark.fault("interpreter: more calls of code than may run")
@pytest.mark.fault("interpreter: a call waiting while its session is deleted")
@pytest.mark.system
async def test_calls_wait_in_one_line_that_shows_their_places(tmp_path: Path) -> None:
    shown: asyncio.Queue[str | None] = asyncio.Queue()
    with running_interpreter(tmp_path, "--spares", "0", "--bare", "--running", "1") as server:
        async with server.client() as client, asyncio.timeout(90):
            first, second, third = (Talk(client, name, name) for name in "abc")
            place = await first.run("import os, time")
            await second.run("kept = 1")
            busy = asyncio.create_task(first.run(UNTIL_RELEASED))
            while (await fetch(server, place, "files/started")).status_code != 200:
                await asyncio.sleep(0.02)
            meta = conversation_meta(second.conversation, second.principal)
            waiting = asyncio.create_task(
                client.call("execute_code", {"code": "kept"}, meta=meta, on_progress=lambda *news: shown.put(news[2]))
            )
            while not (await shown.get() or "").startswith("waiting for a kernel: place 1 of "):
                pass
            leaving = asyncio.create_task(third.run("1"))
            while await shown.get() != "waiting for a kernel: place 1 of 2":
                pass
            leaving.cancel()
            clearing = asyncio.create_task(second.call("clear_session"))
            while await shown.get() != "waiting for a kernel: place 1 of 1":
                pass
            await release(server, place)
            assert (await busy)["result"] == "'done'"
            assert (await waiting).structured["result"] == "1"
            assert "was cleared" in (await clearing).text
            assert (await third.run("'again'"))["result"] == "'again'"


async def sessions(server: RunningInterpreter) -> int:
    async with client_of(server) as http:
        return (await http.get("/health")).json()["sessions"]


async def test_only_a_server_that_no_balancer_can_stand_before_is_called_without_being_asked_first(
    server: RunningInterpreter,
) -> None:
    async with client_of(server) as http:
        ready = (await http.get("/ready")).json()
    assert ready["only_at"] == f"127.0.0.1:{server.port}"

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response(ready)

    async with peer(answer) as address:
        agent, session = InterpreterServer(f"{address.url}/mcp", TOKEN, 10), SessionMemo(kernel=f"{ready['server']}.1")
        try:

            async def asked(*refusals: str, memo: SessionMemo = session) -> int:
                before = len(address.requests)
                for refusal in refusals:
                    await agent.way(Way({}), memo, refusal)
                return len(address.requests) - before

            assert await asked("", "", "") == 3  # what answers is at another address
            ready["only_at"] = address.url.removeprefix("http://")
            assert await asked("", "", "", "draining", "") == 2
            assert await asked("", memo=SessionMemo()) == 1
            ready["only_at"] = ""
            assert await asked("", memo=SessionMemo()) == 1
            assert await asked("", "") == 2
        finally:
            await agent.close()


@pytest.mark.system
@pytest.mark.parametrize("tier", ["bubblewrap", "landlock"])
async def test_a_session_lives_through_everything_in_each_tier(tier: str, tmp_path: Path) -> None:
    with running_interpreter(tmp_path, "--tier", tier) as server:
        async with server.client() as client:
            talk = Talk(client, tier)
            drawn = await talk.run(
                "import pandas as pd\npd.Series([1, 2]).plot.bar().figure.savefig('chart.png'); 'drawn'"
            )
            assert (drawn["result"], [file["name"] for file in drawn["files"]]) == ("'drawn'", ["chart.png"])
            assert drawn["sandbox_tier"] == tier
            assert (await talk.run("sum(range(10**12))", meta=BRIEFLY))["state_lost"]
            assert (await talk.run("import os; os.kill(os.getpid(), 9)"))["ending"] == "died"
            assert (await talk.run("import os; os.listdir('.')"))["result"] == "['chart.png']"
            denied = await talk.run(f"open('/proc/{server.process.pid}/environ').read()")
            assert denied["error"]["ename"] in ("FileNotFoundError", "PermissionError")


# `shaped` signs and sends a message that belongs to the running call.
FORGE = """
import json
kernel = get_ipython().kernel
session = kernel.session
def deep(levels):
    return b"[" * levels + b"]" * levels
def shaped(kind, content):
    parent = json.dumps(kernel.get_parent()["header"], default=str).encode()
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    parts = [json.dumps({"msg_type": kind}).encode(), parent, b"{}", content]
    kernel.iopub_socket.send_multipart([b"t", b"<IDS|MSG>", session.sign(parts), *parts])
"""
FORGED = {
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


@pytest.mark.fault("interpreter: a kernel message forged by its code")
@pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED)
async def test_a_forged_message_does_not_spoil_a_call(same: Talk, forged: str) -> None:
    answer = await same.call("execute_code", code=f"{FORGE}\n{forged}\nprint('printed')\n6 * 7")
    assert not answer.is_error, answer.text
    assert answer.structured["result"] == "42"
    assert "printed" in answer.structured["stdout"]
