"""One function as a tool: every provider and an MCP client get the schema that `dial-agent tools --format` prints."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from pydantic import BaseModel, Field

from task.conversation.messages import user
from task.llm.base import ChatModel, ModelOptions
from task.llm.dapr import DaprServer
from task.llm.ollama import OllamaServer
from task.llm.openai import OpenAIChatModel
from task.llm.scripted import says
from task.llm.transport import new_session
from task.tools.base import in_format
from task.tools.declare import tool
from task.tools.mcp.mcp_client import MCPClient
from task.tools.mcp.mcp_tool import MCPTool
from tests.support.dapr import dapr_peer, in_openais_shape
from tests.support.mcp_wire import raw_server
from tests.support.ollama import MODEL, ollama_peer
from tests.support.upstream import openai_upstream


class Unit(Enum):
    CELSIUS = "c"
    FAHRENHEIT = "f"


@dataclass
class Place:
    city: str
    country: str | None = None


class Span(BaseModel):
    days: int = Field(default=1, ge=1, le=14, description="How many days.")
    tags: list[str] = []


@tool
def forecast(
    place: Place,
    unit: Unit,
    style: Literal["short", "long"] = "short",
    span: Span | None = None,
    limit: int | None = None,
) -> str:
    """Forecast the weather — größtenteils richtig.

    Args:
        place: Where.
        unit: Of the temperatures.
        limit: At most so many words.
    """
    return f"{place} {unit} {style} {span} {limit}"


async def ask(model: ChatModel) -> None:
    async for _ in model.stream([user("?")], [forecast.schema], ModelOptions()):
        pass


async def on_every_wire() -> dict[str, Any]:
    """What arrives, by format."""
    arrived: dict[str, Any] = {}
    async with new_session() as session:
        async with openai_upstream(says("ok")) as upstream:
            await ask(OpenAIChatModel(session, upstream.url, "key", MODEL))
            [arrived["openai"]] = upstream.requests[0].body["tools"]
        async with ollama_peer(says("ok")) as ollama:
            await ask(OllamaServer(session, ollama.url).chat_model(MODEL))
            [arrived["ollama"]] = (await ollama.seen()).bodies[0]["tools"]
        async with dapr_peer(says("ok")) as dapr:
            server = DaprServer(dapr.address)
            await ask(server.chat_model(MODEL))
            await server.close()
            request = (await dapr.seen()).requests[0]
            [arrived["dapr"]] = request["body"]["tools"]
            [arrived["dapr's provider"]] = in_openais_shape(request).body["tools"]
    listing = {"tools/list": {"tools": [in_format(forecast.schema, "mcp")]}}
    async with raw_server(listing) as url, MCPClient.create(url) as client:
        [found] = await client.get_tools()
        arrived["mcp"] = MCPTool(client, found).schema
    return arrived


async def test_every_wire_has_the_schema_that_its_format_prints() -> None:
    arrived = await on_every_wire()
    for form in ("openai", "ollama", "dapr"):
        assert arrived[form] == in_format(forecast.schema, form)
    assert arrived["mcp"] == arrived["dapr's provider"] == forecast.schema
    properties = forecast.parameters["properties"]
    simple = arrived["ollama"]["function"]["parameters"]["properties"]
    assert list(simple) == list(properties) == ["place", "unit", "style", "span", "limit"]
    assert simple["place"]["properties"].keys() == properties["place"]["properties"].keys()
    assert simple["unit"] == properties["unit"]
