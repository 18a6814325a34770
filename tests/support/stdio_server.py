"""A small MCP server that talks over its pipes, by hand, as it is started often: `python stdio_server.py [LOCK]`.

It holds a lock on the file LOCK while it lives.
"""

import fcntl
import json
import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

STARTED = os.urandom(8).hex()


def started() -> str:
    return STARTED


def read(path: str) -> str:
    return Path(path).read_text()


def write(path: str, text: str) -> str:
    return str(Path(path).write_text(text))


def fetch(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return f"refused: {error.read().decode()}"


def environment() -> str:
    return "\n".join(f"{name}={value}" for name, value in os.environ.items())


def die(seconds: float = 0) -> str:
    if not seconds:
        os._exit(3)
    threading.Timer(seconds, os._exit, [3]).start()
    return "soon"


TOOLS: dict[str, Callable[..., str]] = {tool.__name__: tool for tool in (started, read, write, fetch, environment, die)}


def called(name: str, arguments: dict[str, Any]) -> str:
    try:
        return TOOLS[name](**arguments)
    except OSError as error:
        return f"refused: {error}"


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            server = {"name": "local", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": server}
        case "tools/list":
            return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
        case "tools/call":
            text = called(params["name"], params.get("arguments") or {})
            return {"content": [{"type": "text", "text": text}]}
        case _:
            raise NotImplementedError(method)


def main() -> None:
    if sys.argv[1:]:
        lock = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR)  # for the life of the process
        fcntl.flock(lock, fcntl.LOCK_EX)
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": request["id"]}
        try:
            reply["result"] = answer(request["method"], request.get("params") or {})
        except NotImplementedError:
            reply["error"] = {"code": -32601, "message": "Method not found"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
