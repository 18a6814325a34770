"""Run our own services of docker-compose.yml under podman-compose, with local Core in place of Core, and test them."""

import asyncio
import json
import os
import secrets
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.results import MCPResult
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "dial-agent-proof"
OURS = ("core-config", "core", "agent", "python-interpreter", "search")
CORE_HEALTH = "import urllib.request as u; u.urlopen('http://127.0.0.1:8080/health', timeout=4)"
# This machine's limits may be below podman's own, and crun does not start where cgroups are mixed.
ENGINE = """[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
"""
START_SECONDS = 300
ANSWER_SECONDS = 120


def test_services() -> bool:
    """Print each test with its result; whether all hold. The images are built already."""
    with tempfile.TemporaryDirectory() as folder, _started(Path(folder)) as stack:
        if stack is None:
            return False
        good = True
        for name, test in TESTS.items():
            try:
                test(stack)
                print(f"compose: {name}: ok", flush=True)
            except (AssertionError, OSError, subprocess.TimeoutExpired, ValueError) as fault:
                good = False
                print(f"compose: {name}: FAILED: {fault}", flush=True)
        return _stops(stack) and good


class Stack:
    """The running services; `variables` are those of its .env."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.variables = variables
        self._environment = {**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")}
        self._folder = folder

    def compose(self, *arguments: str, seconds: float = START_SECONDS) -> subprocess.CompletedProcess[str]:
        return self._run("podman-compose", "--project-name", PROJECT, *arguments, seconds=seconds)

    def podman(self, *arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
        return self._run("podman", *arguments, seconds=seconds)

    def inside(self, service: str, code: str, user: str = "") -> subprocess.CompletedProcess[str]:
        as_user = ("--user", user) if user else ()
        return self.podman("exec", *as_user, f"{PROJECT}_{service}_1", "python", "-c", code)

    def request(self, port: str, path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        key = {"Api-Key": self.variables["DIAL_API_KEY"], "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.variables[port]}{path}"
        try:
            asked = urllib.request.Request(url, data, {**key, **headers})
            with urllib.request.urlopen(asked, timeout=ANSWER_SECONDS) as reply:  # noqa: S310
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def _run(self, *command: str, seconds: float) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self._folder, env=self._environment, capture_output=True, text=True, timeout=seconds,
            check=False,
        )  # fmt: skip


@contextmanager
def _started(folder: Path) -> Generator[Stack | None]:
    secret = {name: secrets.token_urlsafe(24) for name in ("DIAL_API_KEY", "AGENT_MCP_TOKEN")}
    unused = dict.fromkeys(("OPENAI_API_KEY", "DIAL_ENCRYPTION_SECRET", "DIAL_ENCRYPTION_KEY", "NEXTAUTH_SECRET"), "x")
    ports = {f"HOST_PORT_{name}": str(free_port()) for name in ("AGENT", "CORE")}
    variables = {**secret, **unused, **ports, "AGENT_INTERPRETER__SECONDS": "20", "AGENT_LIMITS__STEPS": "7"}
    variables |= {"DEPLOYMENT_NAME": "scripted-demo", "IMAGE_REGISTRY": "localhost/"}  # local Core's model
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()), encoding="utf-8")
    (folder / "core_config").symlink_to(ROOT / "core_config")
    (folder / "containers.conf").write_text(ENGINE, encoding="utf-8")
    (folder / "docker-compose.yml").write_text(str(yaml.safe_dump(own_services())), encoding="utf-8")
    stack = Stack(folder, variables)
    try:
        started = time.monotonic()
        up = stack.compose("up", "--detach")
        good = up.returncode == 0 and _healthy(stack)
        print(f"compose: {'healthy' if good else 'NOT healthy'} after {time.monotonic() - started:.0f} s", flush=True)
        if not good:
            print((up.stdout + up.stderr)[-1500:], stack.compose("logs").stdout[-3000:])
        yield stack if good else None
    finally:
        stack.compose("down", "--volumes", "--timeout", "20")


def own_services() -> dict[str, Any]:
    """The compose file with our own services alone; every path, variable, mount and right stays as it is there."""
    document: Any = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    services = {name: document["services"][name] for name in OURS}
    for service in services.values():
        needs = service.get("depends_on", {})
        service["depends_on"] = {name: wait for name, wait in needs.items() if name in services}
    services["core"] |= {
        "image": services["agent"]["image"],
        "command": "dial-agent core",
        "volumes": ["core-config:/opt/config:ro", "core-data:/data"],
        "healthcheck": {**services["core"]["healthcheck"], "test": ["CMD", "python", "-c", CORE_HEALTH]},
        "environment": {
            "AGENT_CORE__HOST": "0.0.0.0",  # noqa: S104
            "AGENT_CORE__ALLOW_PUBLIC": "true",
            "AGENT_CORE__ALLOWED_HOSTS": "core",
            "AGENT_CORE__CONFIG_FILES": "/opt/config/config.json",
            "AGENT_CORE__HOST_MAP": "{}",
            "AGENT_CORE__MODEL": "demo",
            "DIAL_API_KEY": services["agent"]["environment"]["DIAL_API_KEY"],
        },
    }
    return {**document, "services": services}


def _healthy(stack: Stack) -> bool:
    waiting = [name for name in OURS if name != "core-config"]
    deadline = time.monotonic() + START_SECONDS
    while waiting and time.monotonic() < deadline:
        waiting = [name for name in waiting if stack.podman("healthcheck", "run", f"{PROJECT}_{name}_1").returncode]
    return not waiting


def _answers(stack: Stack) -> None:
    question = {"messages": [{"role": "user", "content": "What can you do?"}]}
    path = "/openai/deployments/general-purpose-agent/chat/completions"
    status, text = stack.request("HOST_PORT_CORE", path, question)
    assert (status, "choices" in text) == (200, True), (status, text[-500:])


def _guards(stack: Stack) -> None:
    assert stack.request("HOST_PORT_AGENT", "/v1/models")[0] == 200
    assert stack.request("HOST_PORT_AGENT", "/v1/models", **{"Api-Key": "wrong"})[0] == 401


def _shares_toolsets(stack: Stack) -> None:
    found = asyncio.run(_called(stack, "python-interpreter", "execute_code", code="6 * 7"))
    assert found.structured["result"] == "42", found.text
    # What the search finds depends on the machine's way to the web; a private address is refused on every machine.
    found = asyncio.run(_called(stack, "web-search", "fetch_page", url="http://169.254.169.254/"))
    assert "not on the public internet" in found.text, found.text


async def _called(stack: Stack, toolset: str, tool: str, **arguments: str) -> MCPResult:
    address = f"http://127.0.0.1:{stack.variables['HOST_PORT_CORE']}/v1/toolset/{toolset}/mcp"
    async with MCPClient(
        address, headers={"Api-Key": stack.variables["DIAL_API_KEY"]}, timeout=ANSWER_SECONDS
    ) as client:
        return await client.call(tool, arguments)


def _measures(stack: Stack) -> None:
    code = "import urllib.request as u; print(u.urlopen('http://agent:9464/metrics', timeout=10).read().decode())"
    assert "dial_agent_http_requests_total" in stack.inside("core", code).stdout


def _confines(stack: Stack) -> None:
    write = "open('/opt/venv/x', 'w')"
    for service in ("agent", "python-interpreter", "search"):
        assert "Read-only file system" in stack.inside(service, write, "0").stderr, service
    rights = "print(open('/proc/1/status').read())"
    assert "CapEff:\t0000000000000000" in stack.inside("agent", rights).stdout
    assert stack.inside("agent", "open('/data/probe', 'w').close()").returncode == 0
    out = "import socket; socket.create_connection(('1.1.1.1', 53), 3)"
    assert stack.inside("python-interpreter", out).returncode != 0, "the interpreter has a way out"


def _takes_settings(stack: Stack) -> None:
    shown = stack.inside("agent", "import os; print(os.environ['AGENT_LIMITS__STEPS'], os.environ['NEXTAUTH_SECRET'])")
    assert shown.stdout.split() == ["7"], shown.stdout
    command = stack.podman("inspect", "--format", "{{.Config.Cmd}}", f"{PROJECT}_python-interpreter_1").stdout
    assert "--seconds 20 " in command, command


def _hides_keys(stack: Stack) -> None:
    mode = "import os; s = os.stat('/opt/config/config.json'); print(oct(s.st_mode & 0o777), s.st_uid)"
    assert stack.inside("core", mode).stdout.split() == ["0o600", "1001"]
    logs = stack.compose("logs").stdout
    assert not any(stack.variables[name] in logs for name in ("DIAL_API_KEY", "AGENT_MCP_TOKEN"))


TESTS: dict[str, Callable[[Stack], object]] = {
    "a question through Core is answered": _answers,
    "the agent's API takes Core's keys and no others": _guards,
    "Core offers both companions as toolsets": _shares_toolsets,
    "metrics on port 9464": _measures,
    "file systems, capabilities, networks": _confines,
    "settings of .env": _takes_settings,
    "keys are in one private file and in no log": _hides_keys,
}


def _stops(stack: Stack) -> bool:
    started = time.monotonic()
    stack.compose("stop", "--timeout", "20")
    taken = time.monotonic() - started
    codes = {
        name: stack.podman("inspect", "--format", "{{.State.ExitCode}}", f"{PROJECT}_{name}_1").stdout.strip()
        for name in OURS
    }
    print(f"compose: stopped within {taken:.0f} s, exit codes {codes}")
    return "137" not in codes.values()
