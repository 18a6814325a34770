"""The calculator: exact arithmetic for the model, without `eval`."""

from __future__ import annotations

import asyncio
from typing import Any

from task.conversation.messages import Message
from task.tools.base import BaseTool
from task.tools.models import Effect, ToolCallParams


class CalculatorTool(BaseTool):
    """Computes an arithmetic expression; whole numbers and decimals are exact."""

    @property
    def name(self) -> str:
        return "calculator"

    @property
    def description(self) -> str:
        return (
            "Compute an arithmetic expression exactly. Operators: + - * / // % ** (or ^) and comparisons. "
            "Functions: abs, round, min, max, sum, pow, sqrt, sin, cos, tan, asin, acos, atan (radians), degrees, "
            "radians, log (natural, or log(x, base)), log10, log2, exp, floor, ceil, factorial. Constants: pi, e. "
            "Lists go to sum, min and max: sum([1, 2, 3]). Write numbers without thousands separators."
        )

    @property
    def parameters(self) -> dict[str, Any]:
        expression = {"type": "string", "description": "The expression to compute, such as 25*47 or sqrt(2)/3"}
        return {"type": "object", "properties": {"expression": expression}, "required": ["expression"]}

    @property
    def effects(self) -> frozenset[Effect]:
        return frozenset()

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        return await asyncio.to_thread(_computed, arguments["expression"])


def _computed(expression: str) -> str:
    from task.tools.calculator.arithmetic import evaluate
    from task.tools.calculator.functions import formatted

    return formatted(evaluate(expression))
