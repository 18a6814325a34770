"""The platform's scenarios with tools from the web, under the default policy: not one question to the user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from task.conversation.messages import Message, user
from task.permissions.decisions import Allowed, CallRequest
from task.product.parts import default_tools
from task.settings import Settings
from task.tools.base import BaseTool
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.mcp_tool import MCPTool
from task.tools.mcp.mcp_tool_model import MCPToolModel
from task.tools.toolbox import Toolbox
from tests.support.gating import gate, turn

SEARCH, FETCH, IMAGE = "duckduckgo_web_search", "fetch_page", "image_generation_tool"
EXTRACT, CODE, RAG = "file_content_extraction_tool", "execute_code", "rag_search_tool"
REPORT = "files/b/report.csv"
FOUND = "1. Eiffel Tower\n   URL: https://tower.example/en\n   A wrought-iron tower in Paris, 330 metres tall.\n"
Step = tuple[str, dict[str, Any], str]

SCENARIOS: dict[str, tuple[str, list[Step]]] = {
    "11 weather, then a picture of it": (
        "What's the weather in Paris? Then generate an image representing that weather",
        [
            (SEARCH, {"query": "weather in Paris"}, "1. Paris\n   URL: https://w.example/p\n   Rain, 12 degrees.\n"),
            (IMAGE, {"prompt": "Paris in the rain at 12 degrees, umbrellas"}, "The image is attached."),
        ],
    ),
    "15 weather in Kyiv": (
        "What is the weather in Kyiv right now?",
        [(SEARCH, {"query": "weather Kyiv now", "max_results": 5}, "1. Kyiv\n   URL: https://w.example/k\n   Snow.\n")],
    ),
    "16 a person": (
        "Who is Arkadiy Dobkin?",
        [
            (SEARCH, {"query": "Arkadiy Dobkin"}, "1. Dobkin\n   URL: https://bio.example/d\n   EPAM's founder.\n"),
            (FETCH, {"url": "https://bio.example/d", "start": 0}, "He founded EPAM in 1993. See https://epam.example/"),
            (FETCH, {"url": "https://epam.example/", "start": 0}, "EPAM."),
            (FETCH, {"url": "https://bio.example/d", "start": 8000}, "More."),
        ],
    ),
    "17 analysis of a file with a chart": (
        f"Analyze this sales data\n\nAttached files:\n- report.csv (text/csv): {REPORT}",
        [
            (EXTRACT, {"file_url": REPORT, "page": 1}, "| Date | Sales |\n|---|---|\n| 2025-10-01 | 1200 |"),
            (CODE, {"code": "import matplotlib.pyplot as plt\n" + "plt.plot([1, 2])\n" * 80}, "Created chart.png"),
        ],
    ),
    "18 search and paint": (
        "Search for the Eiffel Tower and generate an artistic image of it",
        [
            (SEARCH, {"query": "Eiffel Tower facts"}, FOUND),
            (IMAGE, {"prompt": f"Oil: a wrought-iron tower in Paris, 330 metres tall. {'Light. ' * 60}"}, "Done"),
        ],
    ),
    "8 search in a document, and the calculator": (
        f"How should I clean the plate?\n\nAttached files:\n- manual.txt (text/plain): {REPORT}",
        [
            (RAG, {"request": "How should I clean the plate? " * 9, "file_url": REPORT}, "In warm soapy water."),
            ("calculator", {"expression": "17.5 / 100 * 4380"}, "766.5"),
            ("read_file_lines", {"file_url": "files/b/rag_search_tool-result.txt", "first_line": 1}, "1: x"),
        ],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BaseTool]:
    """The product's own tools with their declared effects, and those of its search server."""
    folder: Path = tmp_path_factory.mktemp("agent")
    settings = Settings.model_validate({"pyinterpreter_mcp_url": "http://127.0.0.1:1/mcp", "data_dir": folder})
    found: list[BaseTool] = default_tools(settings)
    client = MCPClient("http://127.0.0.1:1/mcp")
    found += [MCPTool(client, MCPToolModel(name, name, {"type": "object"}, read_only=True)) for name in (SEARCH, FETCH)]
    return {tool.name: tool for tool in found}


@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_a_scenario_passes_without_a_question(scenario: str, tools: dict[str, BaseTool]) -> None:
    asked, steps = SCENARIOS[scenario]
    box, keeper = Toolbox(list(tools.values())), gate()
    messages: list[Message] = [user(asked)]
    for number, (name, arguments, result) in enumerate(steps):
        call, answer = turn(name, arguments, result, call_id=f"c{number}")
        # The tools that read stored results come with a Core only; their effect is to read.
        effects = tools[name].effects if name in tools else tools[EXTRACT].effects
        decision = await keeper.decide(CallRequest(call.tool_calls[0], arguments, effects, box.view(messages)))
        assert isinstance(decision, Allowed), (name, decision)
        messages += [call, answer]
