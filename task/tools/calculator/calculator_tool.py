"""The calculator: the value of an arithmetic expression for the model, exact and bounded, without `eval`."""

from __future__ import annotations

import ast
import asyncio
import math
import operator
from collections.abc import Callable
from decimal import Decimal, Inexact, localcontext
from fractions import Fraction
from functools import reduce
from typing import Any

from task.conversation.messages import Message
from task.errors import ToolError
from task.tools.base import DescribedTool, ToolSpec, object_schema, text
from task.tools.models import ToolCallParams

MAX_CHARS = 4_000
_SYMBOLS = str.maketrans({"^": "**", "×": "*", "·": "*", "÷": "/", "−": "-"})
MAX_DIGITS = 4_000
MAX_PLACES = 1_000
_MAX_BITS = int(MAX_DIGITS * math.log2(10))
_EXACT_DIGITS = 34
_ROUNDED_DIGITS = 17
_FLOAT_RANGE = 300
Number = int | float | Fraction


class CalculationError(ToolError):
    """An expression without a value."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"Calculation error: {reason}")


class CalculatorTool(DescribedTool):
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
                return _operation(sign)(self.value(operand))
            case ast.BinOp():
                # A long sum is a deep tree that leans left: walking it in a loop avoids a RecursionError.
                steps: list[ast.BinOp] = []
                left: ast.expr = node
                while isinstance(left, ast.BinOp):
                    steps.append(left)
                    left = left.left
                value = self.value(left)
                for step in reversed(steps):
                    value = _operation(step.op)(value, self.value(step.right))
                return value
            case ast.Compare(left=first, ops=comparisons, comparators=others):
                values = [self.value(first)]
                for comparison, other in zip(comparisons, others, strict=True):
                    values.append(self.value(other))
                    if not _operation(comparison)(*values[-2:]):
                        return False
                return True
            case ast.Call():
                return self._called(node)
            case _:
                raise CalculationError(f"{type(node).__name__} is not part of arithmetic")

    def _called(self, node: ast.Call) -> Number:
        if not isinstance(node.func, ast.Name):
            raise CalculationError("only known functions can be called; write products with *")
        name = node.func.id
        if name not in FUNCTIONS:
            raise CalculationError(f"there is no function {name[:40]!r}. Known names: {KNOWN}")
        if node.keywords:
            raise CalculationError(f"{name} takes no named arguments")
        arguments = [self.value(argument) for argument in node.args]
        try:
            return FUNCTIONS[name](*arguments)
        except TypeError as error:
            raise CalculationError(f"{name} cannot take these arguments") from error


def _operation(node: ast.AST) -> Callable[..., Any]:
    if type(node) not in OPERATORS:
        raise CalculationError(f"the operator {type(node).__name__} is not part of arithmetic")
    return OPERATORS[type(node)]


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


def _numeric(operation: Callable[..., Any]) -> Callable[..., Any]:
    def checked(*operands: Any) -> Any:
        if any(isinstance(operand, list) for operand in operands):
            raise CalculationError("lists can only be given to sum, min and max")
        return settled(operation(*operands))

    return checked


def _bits(value: Number) -> int:
    return 0 if isinstance(value, float) else max(value.numerator.bit_length(), value.denominator.bit_length())


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(exponent, int):
        if (_bits(base) - 1) * abs(exponent) > _MAX_BITS:
            raise OverflowError
        return base**exponent if isinstance(base, float) else Fraction(base) ** exponent
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise CalculationError("a root of a negative number is not a real number")
    if isinstance(base, float) or isinstance(exponent, float) or max(_bits(base), _bits(exponent)) > 32:
        return result
    exact = base == 0 or Fraction(round(result)) ** exponent.denominator == Fraction(base) ** exponent.numerator
    return round(result) if exact else result


def _sqrt(value: Number) -> Number:
    if isinstance(value, float) or value < 0:
        return math.sqrt(value)
    above, below = math.isqrt(value.numerator), math.isqrt(value.denominator)
    exact = above**2 == value.numerator and below**2 == value.denominator
    return Fraction(above, below) if exact else math.sqrt(value)


def _log(value: Number, base: Number = math.e) -> float:
    exact_at_powers = {math.e: math.log, 10.0: math.log10, 2.0: math.log2}
    known = exact_at_powers.get(float(base))
    return known(value) if known else math.log(value, base)


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


def _over_numbers(function: Callable[[list[Number]], Number]) -> Callable[..., Number]:
    def spread(*arguments: Any) -> Number:
        numbers: list[Number] = []
        for argument in arguments:
            numbers.extend(argument if isinstance(argument, list) else [argument])
        if not numbers:
            raise CalculationError("sum, min and max need at least one number")
        return function(numbers)

    return spread


OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: _numeric(operator.add),
    ast.Sub: _numeric(operator.sub),
    ast.Mult: _numeric(operator.mul),
    ast.Div: _numeric(lambda one, other: (one if isinstance(other, float) else one * Fraction(1)) / other),
    ast.FloorDiv: _numeric(operator.floordiv),
    ast.Mod: _numeric(operator.mod),
    ast.Pow: _numeric(_power),
    ast.USub: _numeric(operator.neg),
    ast.UAdd: _numeric(operator.pos),
    ast.Eq: _numeric(operator.eq),
    ast.NotEq: _numeric(operator.ne),
    ast.Lt: _numeric(operator.lt),
    ast.LtE: _numeric(operator.le),
    ast.Gt: _numeric(operator.gt),
    ast.GtE: _numeric(operator.ge),
}
_PLAIN = ("sin", "cos", "tan", "asin", "acos", "atan", "degrees", "radians", "exp", "log10", "log2", "floor", "ceil")
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sum": _over_numbers(lambda numbers: reduce(OPERATORS[ast.Add], numbers)),
    "min": _over_numbers(min),
    "max": _over_numbers(max),
    "abs": _numeric(abs),
    "round": _numeric(_round),
    "pow": _numeric(_power),
    "sqrt": _numeric(_sqrt),
    "log": _numeric(_log),
    "factorial": _numeric(_factorial),
    **{name: _numeric(getattr(math, name)) for name in _PLAIN},
}
CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e}
KNOWN = ", ".join((*FUNCTIONS, *CONSTANTS))


def formatted(value: float | Fraction) -> str:
    """An int in full, a terminating fraction as its exact decimal, anything else as the nearest float."""
    if not isinstance(value, Fraction):
        whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
        return str(int(value)) if whole else str(value)
    with localcontext(prec=_EXACT_DIGITS) as context:
        context.clear_flags()  # left by earlier calculations
        decimal = Decimal(value.numerator) / Decimal(value.denominator)
        if not context.flags[Inexact]:
            return _plain(decimal)
        context.prec = _ROUNDED_DIGITS
        return repr(float(decimal)) if -_FLOAT_RANGE < decimal.adjusted() < _FLOAT_RANGE else _plain(+decimal)


def _plain(decimal: Decimal) -> str:
    if -7 <= decimal.adjusted() < _EXACT_DIGITS:
        digits = format(decimal, "f")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    return format(decimal.normalize(), "e")
