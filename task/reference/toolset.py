"""The tools of a program that talks to a model itself: registered by name, and run as the model's answers ask."""

from collections.abc import Callable, Mapping
from typing import Any

from task.closing import run_blocking
from task.conversation.messages import Message, message_from
from task.output.sinks import NullChoice
from task.tools.base import BaseTool, Format, in_format
from task.tools.declare import tool
from task.tools.models import Caller, nobody
from task.tools.toolbox import Toolbox, named


class ToolSet:
    """Tools by name. Whatever is registered runs when the model asks for it: there is no gate here.

    MCP tools belong to the event loop of their client, so that calls of them need `execute_async`.
    """

    def __init__(self, *tools: BaseTool | Callable[..., Any]) -> None:
        self._tools: list[BaseTool] = []
        for each in tools:
            self.register(each)

    def register(self, item: BaseTool | Callable[..., Any]) -> BaseTool:
        """Add a tool, or a function as one; also a decorator.

        Raises:
            SettingsError: there is a tool of this name.
            TypeError: the function cannot become a tool.
        """
        added = item if isinstance(item, BaseTool) else tool(item)
        named([*self._tools, added])
        self._tools.append(added)
        return added

    def schemas(self, form: Format = "openai") -> list[dict[str, Any]]:
        """The tools as OpenAI, Ollama, Dapr or MCP writes them."""
        return [in_format(each.schema, form) for each in self._tools]

    def execute(self, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """`execute_async` for callers without an event loop."""
        return run_blocking(self.execute_async, answer)

    async def execute_async(self, answer: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The results of the calls in an assistant's message in OpenAI's format: one message each, in their order.

        They run in parallel. An unknown tool, wrong arguments and a failure become messages that begin with "Error:".

        Raises:
            KeyError, TypeError, ValueError: it is not a message.
        """
        toolbox = Toolbox(self._tools)
        results = await toolbox.call_all(message_from(answer).tool_calls, NullChoice(), Caller("", nobody))
        return [result.as_dict() for result in results if isinstance(result, Message)]
