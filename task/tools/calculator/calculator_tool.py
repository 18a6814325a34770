"""The calculator: the value of an arithmetic expression for the model, exact and bounded, without `eval`."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from simpleeval import SimpleEval

from task.conversation.messages import Message
from task.tools.base import BaseTool
from task.tools.calculator.functions import (
    CONSTANTS,
    FUNCTIONS,
    MAX_PLACES,
    OPERATORS,
    CalculationError,
    Number,
    settled,
)
from task.tools.models import Effect, ToolCallParams

MAX_CHARS = 4_000
_SYMBOLS = str.maketrans({"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-"})
_KNOWN = ", ".join((*FUNCTIONS, *CONSTANTS))


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
    from task.tools.calculator.calculator_tool import evaluate
    from task.tools.calculator.functions import formatted

    return formatted(evaluate(expression))


def evaluate(expression: str) -> Number:
    """The value: an int or a Fraction where it is exact, a float where it cannot be.

    Raises:
        CalculationError: it is not arithmetic, has no real value, or would be too large.
    """
    text = expression.strip().translate(_SYMBOLS)
    try:
        return _evaluated(text)
    except (RecursionError, MemoryError) as error:
        raise CalculationError("the expression is nested too deeply; send it in parts") from error
    except SyntaxError as error:
        raise CalculationError(f"this is not an arithmetic expression ({error.msg})") from error
    except ZeroDivisionError as error:
        raise CalculationError("division by zero") from error
    except OverflowError as error:
        raise CalculationError("a number gets too large") from error
    except ValueError as error:
        raise CalculationError(str(error)) from error


def _evaluated(text: str) -> Number:
    if not text:
        raise CalculationError("the expression is empty")
    if len(text) > MAX_CHARS:
        raise CalculationError(f"the expression has more than {MAX_CHARS} characters; send it in parts")
    value: Any = _Arithmetic(text).eval(text, ast.parse(text, mode="eval").body)
    if isinstance(value, list):
        raise CalculationError("the result is a list; write numbers without thousands separators")
    return value


class _Arithmetic(SimpleEval):
    """Numbers, operators, calls of known functions and lists of numbers; no text, attributes or subscripts."""

    def __init__(self, text: str) -> None:
        super().__init__(OPERATORS, FUNCTIONS, CONSTANTS)
        self._text = text
        self.nodes = {
            ast.Constant: self._number,
            ast.UnaryOp: self._signed,
            ast.BinOp: self._chain,
            ast.Compare: self._compare,
            ast.Call: self._call,
            ast.Name: self._constant,
            ast.List: self._list,
            ast.Tuple: self._list,
        }

    def _eval(self, node: ast.AST) -> Any:
        if type(node) not in self.nodes:
            raise CalculationError(f"{type(node).__name__} is not part of arithmetic")
        return super()._eval(node)

    def _number(self, node: ast.Constant) -> Number:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise CalculationError(f"{ast.unparse(node)[:40]} is not a number")
        if isinstance(node.value, int):
            return settled(node.value)
        # The literal's own digits: 0.1 is one tenth, not the float next to it.
        exact = Decimal(ast.get_source_segment(self._text, node) or repr(node.value))
        if abs(exact.adjusted()) > MAX_PLACES:
            raise OverflowError
        return settled(Fraction(exact))

    def _signed(self, node: ast.UnaryOp) -> Number:
        return self._operator(node.op)(self._eval(node.operand))

    def _chain(self, node: ast.BinOp) -> Number:
        # A long sum is a deep tree that leans left: walking it in a loop avoids a RecursionError.
        steps: list[ast.BinOp] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp):
            steps.append(left)
            left = left.left
        value = self._eval(left)
        for step in reversed(steps):
            value = self._operator(step.op)(value, self._eval(step.right))
        return value

    def _compare(self, node: ast.Compare) -> bool:
        left = self._eval(node.left)
        for comparison, comparator in zip(node.ops, node.comparators, strict=True):
            right = self._eval(comparator)
            if not self._operator(comparison)(left, right):
                return False
            left = right
        return True

    def _operator(self, node: ast.AST) -> Callable[..., Number]:
        if type(node) not in OPERATORS:
            raise CalculationError(f"the operator {type(node).__name__} is not part of arithmetic")
        return OPERATORS[type(node)]

    def _call(self, node: ast.Call) -> Number:
        if not isinstance(node.func, ast.Name):
            raise CalculationError("only known functions can be called; write products with *")
        name = node.func.id
        if name not in FUNCTIONS:
            raise CalculationError(f"there is no function {name[:40]!r}. Known names: {_KNOWN}")
        if node.keywords:
            raise CalculationError(f"{name} takes no named arguments")
        arguments = [self._eval(argument) for argument in node.args]
        try:
            return FUNCTIONS[name](*arguments)
        except TypeError as error:
            raise CalculationError(f"{name} cannot take these arguments") from error

    def _constant(self, node: ast.Name) -> Number:
        if node.id not in CONSTANTS:
            raise CalculationError(f"{node.id[:40]!r} is not a number. Known names: {_KNOWN}")
        return CONSTANTS[node.id]

    def _list(self, node: ast.List | ast.Tuple) -> list[Number]:
        return [self._eval(element) for element in node.elts]
