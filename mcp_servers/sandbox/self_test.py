"""The self-test: ten probes in every tier and identity that this machine offers, judged by their effects outside."""

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Literal

from mcp_servers.sandbox import probes
from mcp_servers.sandbox.command import command
from mcp_servers.sandbox.errors import SandboxError
from mcp_servers.sandbox.launch import SAFE_TIERS
from mcp_servers.sandbox.marks import kill_marked, marked, new_mark
from mcp_servers.sandbox.policy import MIB, Limits, Policy, TierName
from mcp_servers.sandbox.tiers import Tier, find_tier

TEST_UID = 69_000  # not one of those that kernels have
SECONDS = 60.0
USAGE = "usage: --self-test [--tier bubblewrap|landlock] [--json]"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`held`, `out`, or `broken` (the probe did not run, which proves nothing)."""

    name: str
    about: str
    state: Literal["held", "out", "broken"]
    detail: str


@dataclass(frozen=True, slots=True)
class Trial:
    """One way to run programs here, and the verdict of each probe."""

    tier: TierName
    identity: str
    verdicts: list[Verdict]

    @property
    def escaped(self) -> list[Verdict]:
        """The probes that got out, and those that proved nothing."""
        return [verdict for verdict in self.verdicts if verdict.state != "held"]


def main(options: list[str]) -> int:
    """Try everything and print it; 0 when nothing got out, 1 when something did or no sandbox works.

    Raises:
        SandboxError: the options are not understood.
    """
    match [option for option in options if option != "--json"]:
        case []:
            only = None
        case ["--tier", only] if only in SAFE_TIERS:
            pass
        case _:
            raise SandboxError(USAGE)
    tier = find_tier()
    trials = [Trial(name, _identity(uid), verdicts(name, uid)) for name, uid in ways(tier, only)]
    if "--json" in options:
        print(json.dumps({"tier": asdict(tier), "trials": [asdict(trial) for trial in trials]}))
    else:
        print("\n".join(_lines(tier, trials)))
    return 1 if not trials or any(trial.escaped for trial in trials) else 0


def ways(tier: Tier, only: str | None = None) -> Iterator[tuple[TierName, int | None]]:
    """The tiers that work here, or `only` one, with every identity that programs can have: None is the current uid."""
    for name in SAFE_TIERS:
        if tier.works[name] is None and only in (None, name):
            yield name, None
            if tier.own_uid:
                with suppress(LookupError):
                    python_for(TEST_UID)
                    yield name, TEST_UID


def verdicts(tier: TierName, uid: int | None) -> list[Verdict]:
    """Run the probes once under this tier and identity; a run with its own uid owns nothing outside.

    Raises:
        LookupError: there is no Python that the uid can execute.
    """
    secret, mark, python = secrets.token_hex(16), new_mark(), python_for(uid)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="probe-", ignore_cleanup_errors=True))
        outside, read_only, inside = _folders(folder, secret, uid)
        program = shutil.copy(probes.__file__, f"{read_only}/probes.py")
        os.chmod(program, 0o644)
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        named = stack.enter_context(socket.socket(socket.AF_UNIX))
        named.bind(f"\0probe-{secret[:8]}")
        named.listen()
        neighbour = stack.enter_context(_neighbour(secret))
        world = {
            "outside": outside,
            "read_only": read_only,
            "port": tcp.getsockname()[1],
            "socket": f"probe-{secret[:8]}",
            "neighbour": neighbour.pid,
            "secret": secret,
        }
        policy = Policy(
            workdir=inside,
            read_write=(inside,),
            # The installation of a Python that lies outside the system's folders.
            read_only=(read_only, *((sys.base_prefix,) if python == os.path.realpath(sys.executable) else ())),
            environment={"PATH": "/usr/bin:/bin", "HOME": inside},
            uid=uid,
            limits=Limits(memory=768 * MIB, processes=100),
            tier=tier,
            allow_unsafe=tier == "none",
            mark=mark,
        )
        argv = command(policy, [python, "-I", "-S", "-B", program, json.dumps(world)])
        done = subprocess.run(argv, capture_output=True, text=True, timeout=SECONDS, check=False)  # noqa: S603
        kill_marked(mark)
        effects = {
            "write_file": not _holds(f"{outside}/write_file", secret),
            "create_in_read_only": os.path.exists(f"{read_only}/create_in_read_only"),
            "connect": _was_reached(tcp),
            "connect_by_name": _was_reached(named),
            "end_neighbour": neighbour.poll() is not None,
            "outlive": bool(marked(mark)),
        }
    reports = {report["name"]: report for report in map(json.loads, done.stdout.splitlines())}
    return [_judged(name, reports.get(name), secret, effects.get(name, False)) for name in probes.PROBES]


def _folders(parent: str, secret: str, uid: int | None) -> tuple[str, str, str]:
    # A folder outside with the secret, one that may only be read, and the run's own, which `uid` owns.
    os.chmod(parent, 0o755)  # noqa: S103
    outside, read_only, inside = (f"{parent}/{name}" for name in ("outside", "read_only", "inside"))
    for place, mode in ((outside, 0o777), (read_only, 0o777), (inside, 0o700)):
        os.mkdir(place)
        os.chmod(place, mode)
    if uid is not None:
        os.chown(inside, uid, uid)
    for name in ("secret", "write_file"):
        with open(f"{outside}/{name}", "w") as file:
            file.write(secret)
        os.chmod(f"{outside}/{name}", 0o666)  # noqa: S103
    return outside, read_only, inside


@contextmanager
def _neighbour(secret: str) -> Generator[subprocess.Popen[bytes]]:
    # Of this user, and without capabilities: a program without them could read no other environment anywhere.
    policy = Policy(workdir="/", environment={"SECRET": secret}, tier="none", allow_unsafe=True)
    argv = command(policy, ["/bin/sh", "-c", f"echo; exec sleep {2 * SECONDS:.0f}"])
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:  # noqa: S603
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process
        finally:
            process.kill()


def _judged(name: str, report: dict[str, str] | None, secret: str, has_effect: bool) -> Verdict:
    about = (probes.PROBES[name].__doc__ or name).strip()
    if has_effect or (report is not None and secret in report["got"]):
        return Verdict(name, about, "out", "it worked")
    if report is None:
        return Verdict(name, about, "broken", "it did not run")
    return Verdict(name, about, "held", report["error"] or "nothing was gained")


def _holds(path: str, text: str) -> bool:
    with open(path) as file:
        return file.read() == text


def _was_reached(listener: socket.socket) -> bool:
    listener.setblocking(False)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def python_for(uid: int | None) -> str:
    """A Python that the uid can execute; the current one for None.

    Raises:
        LookupError: there is none.
    """
    # Behind the links of a virtual environment, which -S does not see.
    own = os.path.realpath(sys.executable)
    if uid is None:
        return own
    for candidate in (own, "/usr/local/bin/python3", "/usr/bin/python3"):
        with suppress(OSError):
            done = subprocess.run(  # noqa: S603
                [candidate, "-I", "-S", "-c", "import json"],
                cwd="/",
                user=uid,
                group=uid,
                extra_groups=[],
                check=False,
                stderr=subprocess.DEVNULL,
            )
            if done.returncode == 0:
                return candidate
    raise LookupError(f"uid {uid} can execute no Python here")


def _identity(uid: int | None) -> str:
    if uid is not None:
        return "a uid of its own"
    return "root without capabilities" if os.geteuid() == 0 else "the ordinary user"


def _lines(tier: Tier, trials: list[Trial]) -> Iterator[str]:
    yield f"Tier of this machine: {tier.name} (level {tier.level}), kernel {tier.kernel}, {', '.join(tier.mechanisms)}"
    yield from (f"  {name} does not work here: {reason}" for name, reason in tier.works.items() if reason)
    yield from (f"  note: {gap}" for gap in tier.gaps)
    for trial in trials:
        yield f"\n{trial.tier}, {trial.identity}: {len(trial.escaped)} of {len(trial.verdicts)} got out"
        for verdict in trial.verdicts:
            yield f"  {verdict.state:6}  {verdict.name:20} {verdict.about}: {verdict.detail}"
    if not trials:
        yield "No sandbox works here: programs are not run unless the configuration says so explicitly."
