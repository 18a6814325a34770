"""The agent's work with nothing around it: a loop over aiohttp and orjson, to which every ratio refers.

`python -m tests.benchmarks.bare PORT` reads one JSON line per run, {"scripts": [...], "history": [...]}, runs the
scripts' conversations in parallel, and writes a line with its CPU seconds and each conversation's seconds to its
end and to its first word.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from time import perf_counter, process_time
from typing import Any

import aiohttp
import orjson
import uvloop

Message = dict[str, Any]
_PARAMETERS = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
_TOOLS = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": _PARAMETERS}}
    for name in ("noop", "slow")
]


async def chunks(session: aiohttp.ClientSession, url: str, messages: Sequence[Message]) -> AsyncGenerator[Message]:
    body = orjson.dumps({"messages": messages, "stream": True, "tools": _TOOLS})
    async with session.post(url, data=body, headers={"Content-Type": "application/json"}) as response:
        rest = b""
        async for data in response.content.iter_any():
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    yield orjson.loads(line[6:])


async def conversation(
    session: aiohttp.ClientSession, url: str, messages: list[Message], on_text: Callable[[str], None]
) -> None:
    """Request, run the calls, request again, until there are no calls."""
    while True:
        calls: dict[int, Message] = {}
        async for chunk in chunks(session, url, messages):
            delta = chunk["choices"][0]["delta"]
            if text := delta.get("content"):
                on_text(text)
            for fragment in delta.get("tool_calls", ()):
                call = calls.setdefault(fragment["index"], fragment)
                if call is not fragment:
                    call["function"]["arguments"] += fragment["function"]["arguments"]
        if not calls:
            return
        messages.append({"role": "assistant", "tool_calls": list(calls.values())})
        messages += await asyncio.gather(*map(_result, calls.values()))


async def _result(call: Mapping[str, Any]) -> Message:
    arguments = orjson.loads(call["function"]["arguments"])
    if call["function"]["name"] == "slow":
        await asyncio.sleep(0.1)
    return {"role": "tool", "tool_call_id": call["id"], "content": str(arguments["x"])}


async def timed(session: aiohttp.ClientSession, url: str, messages: list[Message]) -> tuple[float, float]:
    times: list[float] = []
    started = perf_counter()
    await conversation(session, url, messages, lambda _: None if times else times.append(perf_counter() - started))
    return perf_counter() - started, times[0]


async def main(port: int) -> None:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    commands = asyncio.StreamReader(limit=2**24)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        while line := await commands.readline():
            command = orjson.loads(line)
            runs = [[*command["history"], {"role": "user", "content": script}] for script in command["scripts"]]
            before = process_time()
            times = await asyncio.gather(*(timed(session, url, messages) for messages in runs))
            print(orjson.dumps({"cpu": process_time() - before, "times": times}).decode(), flush=True)


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
