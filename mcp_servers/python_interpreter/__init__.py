"""The Python interpreter server: one sandboxed IPython kernel per conversation, over MCP."""
