"""Build our images and test their containers without Docker: `python -m scripts.containers`, as root.

Needs Debian's podman, runc, catatonit and debootstrap, and podman-compose of PyPI. The base image is a minimal Debian
built here. The limits of a container come from docker-compose.yml, and the refused system calls from podman's default
profile.
"""

import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scripts.composed import test_services
from tests.support.compose import FILLED, composed, image_builds

ROOT = Path(__file__).resolve().parents[1]
BASE = "docker.io/library/python:3.11-slim"
PODMAN = ("podman", "--runtime", "runc")
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")  # podman's own may exceed this machine's
INCLUDED = "python3,python3-venv,ca-certificates"
NAME = "dial-agent-test"
START_SECONDS = 60
WAY_OUT = "import socket; socket.create_connection(('1.1.1.1', 53), 3)"
CODE = "import os, pandas as pd; pd.Series([1, 2]).plot.bar().figure.savefig('bars.png'); os.getuid()"


def main() -> int:
    """Print each test with its result; 1 when one failed."""
    needed = ("podman", "runc", "catatonit", "debootstrap", "podman-compose")
    missing = [name for name in needed if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        print(f"Run this as root on Debian; missing: {', '.join(missing) or 'nothing'}.", file=sys.stderr)
        return 2
    services, builds = composed({**FILLED, "IMAGE_REGISTRY": "localhost/"})["services"], image_builds()
    if _run("podman", "image", "exists", BASE).returncode:
        _build_base()
    good = True
    for service in ("python-interpreter", "search", "agent"):
        image = services[service]["image"]
        _build(builds[service].get("dockerfile", "Dockerfile"), image)
        if service != "agent":
            good &= _test_container(service, services[service], image)
    good &= test_services()
    return 0 if good else 1


def _build_base() -> None:
    with tempfile.TemporaryDirectory() as folder:
        base, archive = Path(folder) / "base", Path(folder) / "base.tar"
        _must("debootstrap", "--variant=minbase", f"--include={INCLUDED}", "bookworm", str(base))
        (base / "usr/bin/python").symlink_to("python3")
        shutil.copy("/etc/ssl/certs/ca-certificates.crt", base / "etc/ssl/certs/ca-certificates.crt")
        _must("tar", "-C", str(base), "-cf", str(archive), ".")
        _must("podman", "import", str(archive), BASE)


def _build(dockerfile: str, image: str) -> None:
    extra = shlex.split(os.environ.get("PODMAN_BUILD_ARGS", ""))  # a package mirror, for example
    started = time.monotonic()
    options = ("--network", "host", "--pull=never", "--format", "docker", *LIMITS, *extra)  # OCI knows no HEALTHCHECK
    _must(*PODMAN, "build", *options, "--file", dockerfile, "--tag", image, ".")
    print(f"{image}: built in {time.monotonic() - started:.0f} s", flush=True)


def _test_container(name: str, service: dict[str, Any], image: str) -> bool:
    token, port = secrets.token_urlsafe(24), 8050 if name == "python-interpreter" else 8051
    _run("podman", "rm", "--force", NAME)
    # The network of the tools leads nowhere, like `internal` in the compose file.
    network = ("--network", "none" if service["networks"] == ["tools"] else "podman")
    command = (*PODMAN, "run", "--detach", "--name", NAME, *network, *LIMITS, *_confinement(service))
    _must(*command, "--env", f"AGENT_MCP_TOKEN={token}", image)
    try:
        health = _health(port)
        print(f"{name}: {health}")
        return bool(health) and (_test_interpreter(token) if port == 8050 else True)
    finally:
        stopped = time.monotonic()
        _must("podman", "stop", "--time", "10", NAME)
        print(f"{name}: stopped within {time.monotonic() - stopped:.1f} s")
        _run("podman", "rm", "--force", NAME)


def _confinement(service: dict[str, Any]) -> list[str]:
    options = ["--read-only", "--read-only-tmpfs=false", "--init" if service.get("init") else ""]
    options += [f"--tmpfs={folder}" for folder in service["tmpfs"]]
    options += [f"--cap-drop={capability}" for capability in service["cap_drop"]]
    options += [f"--cap-add={capability}" for capability in service.get("cap_add", ())]
    options += [f"--security-opt={option.partition(':')[0]}" for option in service["security_opt"]]
    options += [f"--volume={volume.partition(':')[2]}" for volume in service.get("volumes", ())]
    limits = {"pids-limit": "pids_limit", "memory": "mem_limit", "cpus": "cpus"}
    options += [f"--{option}={service[key]}" for option, key in limits.items()]
    return [option for option in options if option]


def _test_interpreter(token: str) -> bool:
    closed = _inside("-c", WAY_OUT).returncode != 0
    print(f"python-interpreter: a way out of its network: {'none' if closed else 'FOUND'}")
    ran = _inside("-c", _CALL, token, CODE)
    print(f"python-interpreter: {(ran.stdout or ran.stderr).strip().splitlines()[-1]}")
    tried = [_inside("-m", "mcp_servers.sandbox", "--self-test", user=user) for user in ("0", "1001")]
    for test in tried:
        print("\n".join(line for line in test.stdout.splitlines() if " got out" in line))
    return closed and ran.returncode == 0 and all(test.returncode == 0 for test in tried)


_CALL = """
import asyncio, sys
from task.tools.mcp.mcp_client import MCPClient
async def call():
    async with MCPClient("http://127.0.0.1:8050/mcp", token=sys.argv[1], timeout=60) as client:
        result = (await client.call("execute_code", {"code": sys.argv[2]})).structured
        names = [file["name"] for file in result["files"]]
        print(f"code ran as uid {result['result']} in the tier {result['sandbox_tier']} and wrote {names}")
        assert result["error"] is None and int(result["result"]) >= 1000 and names == ["bars.png"], result
asyncio.run(call())
"""


def _inside(*arguments: str, user: str = "0") -> subprocess.CompletedProcess[str]:
    return _run("podman", "exec", "--user", user, NAME, "python", *arguments)


def _health(port: int) -> str:
    code = f"import urllib.request as u; print(u.urlopen('http://127.0.0.1:{port}/health', timeout=4).read().decode())"
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        answered = _inside("-c", code)
        if answered.returncode == 0:
            return answered.stdout.strip()
        time.sleep(0.5)
    print(_run("podman", "logs", NAME).stderr[-2000:], file=sys.stderr)
    return ""


def _must(*command: str) -> None:
    done = _run(*command)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} … failed:\n{(done.stdout + done.stderr)[-3000:]}")


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main())
