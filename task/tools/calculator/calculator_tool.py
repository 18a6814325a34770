"""The calculator: the value of an arithmetic expression for the model, exact and bounded, without `eval`."""

import ast
import asyncio
import math
import operator
from collections.abc import Callable
from decimal import Context, Decimal, Inexact
from fractions import Fraction
from functools import reduce
from typing import Any

from task.conversation.messages import Message
from task.errors import ToolError
from task.tools.base import BaseTool, ToolSpec, object_schema, text
from task.tools.models import ToolCallParams

MAX_CHARS = 4_000
_SYMBOLS = str.maketrans({"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-"})
MAX_DIGITS = 4_000
MAX_PLACES = 1_000
_MAX_BITS = int(MAX_DIGITS * math.log2(10))
_EXACT_DIGITS = 34
_ROUNDED_DIGITS = 17
_FLOAT_RANGE = 300
_MAX_ROOT = 64  # a root or power up to this one is checked for being a whole number
Number = int | float | Fraction


class CalculationError(ToolError):
    """An expression without a value."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Calculation error: {reason}")


class CalculatorTool(BaseTool):
    """Computes an arithmetic expression; whole numbers and decimals are exact."""

    spec = ToolSpec(
        "calculator",
        "Compute an arithmetic expression exactly. Operators: + - * / // % ** (or ^) and comparisons. "
        "Functions: abs, round, min, max, sum, pow, sqrt, sin, cos, tan, asin, acos, atan (radians), degrees, "
        "radians, log (natural, or log(x, base)), log10, log2, exp, floor, ceil, factorial. Constants: pi, e. "
        "Lists go to sum, min and max: sum([1, 2, 3]). Write numbers without thousands separators.",
        object_schema("expression", expression=text("The expression to compute, such as 25*47 or sqrt(2)/3")),
        effects=frozenset(),
    )

    async def _execute(self, tool_call_params: ToolCallParams) -> str | Message:
        arguments = tool_call_params.arguments or self.parse(tool_call_params.tool_call)
        return await asyncio.to_thread(lambda: formatted(evaluate(arguments["expression"])))


def evaluate(expression: str) -> Number:
    """The value: an int or a Fraction where it is exact, a float where it cannot be.

    Raises:
        CalculationError: it is not arithmetic, has no real value, or would be too large.
    """
    written = expression.strip().translate(_SYMBOLS)
    if not written:
        raise CalculationError("the expression is empty")
    if len(written) > MAX_CHARS:
        raise CalculationError(f"the expression has more than {MAX_CHARS} characters; send it in parts")
    try:
        value = _Arithmetic(written).value(ast.parse(written, mode="eval").body)
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
    if isinstance(value, list):
        raise CalculationError("the result is a list; write numbers without thousands separators")
    return value


class _Arithmetic:
    """Numbers, operators, calls of known functions and lists of numbers; no text, attributes or subscripts."""

    def __init__(self, written: str) -> None:
        self._written = written

    def value(self, node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=int(number)) if not isinstance(number, bool):
                return settled(number)
            case ast.Constant(value=float(number)):
                # The literal's own digits: 0.1 is one tenth, not the float next to it.
                exact = Decimal(ast.get_source_segment(self._written, node) or repr(number))
                if abs(exact.adjusted()) > MAX_PLACES:
                    raise OverflowError
                return settled(Fraction(exact))
            case ast.Constant():
                raise CalculationError(f"{ast.unparse(node)[:40]} is not a number")
            case ast.Name(id=name):
                if name not in CONSTANTS:
                    raise CalculationError(f"{name[:40]!r} is not a number. Known names: {KNOWN}")
                return CONSTANTS[name]
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                return [self.value(element) for element in elements]
            case ast.UnaryOp(op=sign, operand=operand):
                return _operated(sign, self.value(operand))
            case ast.BinOp():
                # A long sum is a deep tree that leans left: walking it in a loop avoids a RecursionError.
                steps: list[ast.BinOp] = []
                left: ast.expr = node
                while isinstance(left, ast.BinOp):
                    steps.append(left)
                    left = left.left
                return reduce(
                    lambda value, step: _operated(step.op, value, self.value(step.right)),
                    reversed(steps),
                    self.value(left),
                )
            case ast.Compare(left=first, ops=comparisons, comparators=others):
                values = [self.value(item) for item in (first, *others)]
                pairs = zip(comparisons, values, values[1:], strict=False)
                return all(_operated(comparison, *pair) for comparison, *pair in pairs)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return _called(name, list(map(self.value, arguments)))
            case ast.Call():
                raise CalculationError("only known functions can be called, without named arguments; products need *")
            case _:
                raise CalculationError(f"{type(node).__name__} is not part of arithmetic")


def _operated(node: ast.AST, *operands: Any) -> Any:
    if type(node) not in OPERATORS:
        raise CalculationError(f"the operator {type(node).__name__} is not part of arithmetic")
    if any(isinstance(operand, list) for operand in operands):
        raise CalculationError(_NO_LIST)
    return settled(OPERATORS[type(node)](*operands))


def _called(name: str, arguments: list[Any]) -> Number:
    if name in OVER_NUMBERS:
        spread = [item for given in arguments for item in (given if isinstance(given, list) else [given])]
        if not spread or any(isinstance(item, list) for item in spread):
            raise CalculationError("sum, min and max need at least one number, and no list in a list")
        return OVER_NUMBERS[name](spread)
    if name not in FUNCTIONS:
        raise CalculationError(f"there is no function {name[:40]!r}. Known names: {KNOWN}")
    if any(isinstance(argument, list) for argument in arguments):
        raise CalculationError(_NO_LIST)
    try:
        return settled(FUNCTIONS[name](*arguments))
    except TypeError as error:
        raise CalculationError(f"{name} cannot take these arguments") from error


def settled(value: Any) -> Any:
    """The value, as an int if it is whole and as a float if its fraction has too many digits.

    Raises:
        OverflowError: it has more than `MAX_DIGITS` digits.
        CalculationError: it is not a real number, or too close to zero for a float.
    """
    if isinstance(value, complex):
        raise CalculationError("the result is not a real number")
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    if not isinstance(value, int | Fraction) or isinstance(value, bool):
        return value
    if value.numerator.bit_length() > _MAX_BITS:
        raise OverflowError
    if value.denominator == 1:
        return value.numerator
    if value.denominator.bit_length() <= _MAX_BITS:
        return value
    nearest = float(value)
    if nearest == 0:
        raise CalculationError("the result is too close to zero")
    return nearest


def _power(base: Number, exponent: Number) -> Any:
    if isinstance(base, float) or isinstance(exponent, float):
        return base**exponent
    if isinstance(exponent, int):
        if (max(base.numerator.bit_length(), base.denominator.bit_length()) - 1) * abs(exponent) > _MAX_BITS:
            raise OverflowError
        return Fraction(base) ** exponent
    result: Any = float(base) ** float(exponent)
    above, below = exponent.numerator, exponent.denominator
    if isinstance(result, complex) or max(abs(above), below) > _MAX_ROOT:
        return result
    return round(result) if Fraction(round(result)) ** below == Fraction(base) ** above else result


def _log(value: Number, base: Number = math.e) -> Number:
    result = math.log(value) if base == math.e else math.log(value, base)
    whole = isinstance(base, int) and Fraction(base) ** round(result) == value
    return round(result) if whole else result


def _round(value: Number, places: Number = 0) -> Number:
    if not isinstance(places, int) or abs(places) > MAX_PLACES:
        raise CalculationError(f"round takes a whole number of places up to {MAX_PLACES}")
    return round(value, places) if places else round(value)


def _factorial(value: Number) -> int:
    if not isinstance(value, int) or value < 0:
        raise CalculationError("factorial takes a whole number that is not negative")
    if value > MAX_DIGITS:
        raise OverflowError
    return math.factorial(value)


_NO_LIST = "lists can only be given to sum, min and max"
OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda one, other: (one if isinstance(other, float) else one * Fraction(1)) / other,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
OVER_NUMBERS: dict[str, Callable[[list[Number]], Number]] = {
    "sum": lambda numbers: reduce(lambda one, other: settled(one + other), numbers),
    "min": min,
    "max": max,
}
_PLAIN = ("sin", "cos", "tan", "asin", "acos", "atan", "degrees", "radians", "exp", "log10", "log2", "floor", "ceil")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "round": _round,
    "pow": _power,
    "sqrt": lambda value: _power(value, Fraction(1, 2)),
    "log": _log,
    "factorial": _factorial,
    **{name: getattr(math, name) for name in _PLAIN},
}
CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e}
KNOWN = ", ".join((*OVER_NUMBERS, *FUNCTIONS, *CONSTANTS))


def formatted(value: float | Fraction) -> str:
    """An int in full, a terminating fraction as its exact decimal, anything else as the nearest float."""
    if not isinstance(value, Fraction):
        whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
        return str(int(value)) if whole else str(value)
    context = Context(prec=_EXACT_DIGITS)
    decimal = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    if not context.flags[Inexact]:
        return _plain(decimal)
    if -_FLOAT_RANGE < decimal.adjusted() < _FLOAT_RANGE:
        return repr(float(value))
    return _plain(Context(prec=_ROUNDED_DIGITS).plus(decimal))


def _plain(decimal: Decimal) -> str:
    # Without a context of its own, it would be rounded to 28 digits.
    shortest = decimal.normalize(Context(prec=_EXACT_DIGITS))
    return format(shortest, "f" if -7 <= shortest.adjusted() < _EXACT_DIGITS else "e")
