"""`python -m mcp_servers.duckduckgo`."""

from mcp_servers.duckduckgo.server import main

main()
