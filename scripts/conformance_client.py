"""The client that the conformance suite runs: list the tools at the given address, and add two numbers."""

from __future__ import annotations

import asyncio
import sys

from task.tools.mcp.mcp_client import MCPClient


async def main(url: str) -> None:
    async with MCPClient.create(url) as client:
        names = [tool.name for tool in await client.get_tools()]
        if "add_numbers" in names:
            await client.call_tool("add_numbers", {"a": 5, "b": 3})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
