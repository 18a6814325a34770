"""Try the escape list under one policy and judge every attack by its traces."""

import json
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from mcp_servers.sandbox.command import command
from mcp_servers.sandbox.marks import kill_marked, marked, new_mark
from mcp_servers.sandbox.policy import MIB, Limits, Policy, TierName
from mcp_servers.sandbox.self_test import Verdict
from tests.support.escapes.arena import MEMORY, Arena, arena
from tests.support.escapes.catalogue import ENDLESS, QUICK, about
from tests.support.escapes.world import GOT_IT

LIMITS = Limits(memory=MEMORY, file_bytes=64 * MIB, processes=100, open_files=128)
QUICK_SECONDS = 60.0
FIRST_WORD_SECONDS = 20.0
END_SECONDS = 5.0
Start = Callable[[Policy, list[str]], list[str]]


def verdicts(tier: TierName, uid: int | None, quick: bool = False, start: Start = command) -> Iterator[Verdict]:
    """Run every attack, with `quick` only those that end by themselves; a run with its own uid owns nothing outside.

    `start` makes the command line that runs a program under a policy.

    Raises:
        LookupError: there is no Python that the uid can execute.
        RuntimeError: the attacks did not run.
    """
    with arena(uid, None if uid is None else uid + 1) as ground:
        yield from quick_verdicts(ground, tier, uid, start=start)
        for number, name in enumerate(() if quick else ENDLESS):
            # Dead processes count against a uid's limit until they are reaped, so each run has another one.
            other = None if uid is None else uid + 2 + number
            if other is not None:
                os.chown(ground.world.inside, other, other)
            yield _endless(ground, name, tier, other, start)


def quick_verdicts(
    ground: Arena, tier: TierName, uid: int | None, limits: Limits = LIMITS, start: Start = command
) -> Iterator[Verdict]:
    """The attacks that end by themselves, on this ground.

    Raises:
        RuntimeError: the attacks did not run.
    """
    done = subprocess.run(
        start(*_run(ground, tier, uid, limits, new_mark(), ground.world.to_json())),
        capture_output=True, text=True, timeout=QUICK_SECONDS, check=False, pass_fds=[ground.descriptor],
    )  # fmt: skip
    reports = {report["name"]: report for report in map(json.loads, done.stdout.splitlines())}
    if reports.keys() != QUICK.keys():
        raise RuntimeError(f"the attacks did not finish: {done.stderr.strip()[-500:]}")
    traces = ground.traces()
    for name, report in reports.items():
        yield _judged(name, report["said"], report["error"], traces.get(name), ground.secret)


def _judged(name: str, said: str, error: str, trace: str | None, secret: str) -> Verdict:
    if trace is not None:
        return Verdict(name, about(name), "out", trace)
    if secret in said:
        return Verdict(name, about(name), "out", "read the secret")
    if said == GOT_IT:
        return Verdict(name, about(name), "out", "succeeded")
    if error.startswith("BROKEN"):
        return Verdict(name, about(name), "broken", error)
    return Verdict(name, about(name), "held", error or "nothing was gained")


def _endless(ground: Arena, name: str, tier: TierName, uid: int | None, start: Start) -> Verdict:
    """Start it, wait for its first word, end the run: nothing may be left, and nothing may hold the pipe open."""
    mark = new_mark()
    process = subprocess.Popen(
        start(*_run(ground, tier, uid, LIMITS, mark, ground.world.to_json(), name)),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    try:
        word = _read(pipe, FIRST_WORD_SECONDS, lambda text: b"\n" in text).partition(b"\n")[0].decode()
        process.kill()
        ended = kill_marked(mark)
        _read(pipe, END_SECONDS, lambda text: False, until_end=True)
    except TimeoutError as error:
        return Verdict(name, about(name), "out", str(error))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return _endless_verdict(name, word, ended, bool(marked(mark)), tier, uid)


def _endless_verdict(name: str, word: str, ended: int, left: bool, tier: TierName, uid: int | None) -> Verdict:
    if not word:
        return Verdict(name, about(name), "broken", "it said nothing")
    if left:
        return Verdict(name, about(name), "out", f"{word}; something outlived the end")
    counted = uid is not None or (tier == "bubblewrap" and os.geteuid() != 0)
    if name == "fork_bomb" and counted and int(word.split()[0]) > (LIMITS.processes or 0):
        return Verdict(name, about(name), "out", f"{word}, more than {LIMITS.processes}")
    return Verdict(name, about(name), "held", f"{word}; {ended} ended with the run")


def _run(
    ground: Arena, tier: TierName, uid: int | None, limits: Limits, mark: int, *arguments: str
) -> tuple[Policy, list[str]]:
    program_folder = ground.program.split("/tests/")[0]
    own = (sys.base_prefix,) if ground.python == os.path.realpath(sys.executable) else ()
    policy = Policy(
        workdir=ground.world.inside,
        read_write=(ground.world.inside,),
        read_only=(program_folder, ground.world.read_only, *own),
        environment={"PATH": "/usr/bin:/bin", "HOME": ground.world.inside},
        uid=uid,
        limits=limits,
        tier=tier,
        allow_unsafe=tier == "none",
        mark=mark,
    )
    return policy, [ground.python, "-I", "-S", "-B", ground.program, *arguments]


def _read(pipe: int, seconds: float, enough: Callable[[bytes], bool], until_end: bool = False) -> bytes:
    """What comes out of the pipe until it is enough or ends.

    Raises:
        TimeoutError: neither happened in time.
    """
    text, deadline = b"", time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            part = os.read(pipe, 65536)
            if not part:
                return text
            text = part if until_end else text + part
            if enough(text):
                return text
    raise TimeoutError(f"no end within {seconds:.0f} s" if until_end else f"no word within {seconds:.0f} s")
