"""The search server: DuckDuckGo results and the text of web pages, over MCP."""
