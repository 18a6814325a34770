"""The default tools' schemas as a small model's backend receives them, in the order in which the product lists them."""

from typing import Any

from task.llm.base import ToolSchema

STRING: dict[str, Any] = {"type": "string"}
INTEGER: dict[str, Any] = {"type": "integer", "minimum": 1}


def tool(name: str, description: str, required: list[str], **properties: Any) -> ToolSchema:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


EXTRACT = "file_content_extraction_tool"
DEFAULT_TOOLS = (
    tool(EXTRACT, "Read the text of a file.", ["file_url"], file_url=STRING, page=INTEGER),
    tool("rag_search_tool", "Answer from documents.", ["request", "file_url"], request=STRING, file_url=STRING),
    tool("read_file_lines", "Read lines of a stored text file.", ["file_url"], file_url=STRING, first_line=INTEGER),
    tool("search_in_file", "Find lines.", ["file_url", "text"], file_url=STRING, text=STRING),
    tool("calculator", "Compute an arithmetic expression exactly.", ["expression"], expression=STRING),
    tool("image_generation_tool", "Generate a picture.", ["prompt"], prompt=STRING, size=STRING, style=STRING),
    tool("execute_code", "Execute Python code.", ["code"], code=STRING),
    tool("duckduckgo_web_search", "Search the web.", ["query"], query=STRING, max_results=INTEGER),
    tool("fetch_page", "Read the text of a web page.", ["url"], url=STRING, start=INTEGER),
)
