"""Tools of MCP servers: a client that survives its servers, and tools made of what they offer."""
