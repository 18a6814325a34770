"""The calculator: exact results, and a bound for every expression that tries to run away."""

from decimal import Inexact, localcontext
from time import process_time

import pytest

from task.tools.calculator.calculator_tool import CalculatorTool
from tests.support.tool_calls import called


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("25*47", "1175"),
        ("0.1+0.2", "0.3"),
        ("2**10000 % 10**9", "596709376"),
        ("10/4", "2.5"),
        ("1/3", "0.3333333333333333"),
        ("1/3*3", "1"),
        ("7//2 + -7%3", "5"),
        ("1.005*1000", "1005"),
        ("0.1+0.2 == 0.3", "True"),
        ("1 < 2 < 2", "False"),
        ("123456789012345678901234567890*10", "1234567890123456789012345678900"),
        ("1e-400", "1e-400"),
        ("10**-5", "0.00001"),
        ("10**400/3", "3.3333333333333333e+399"),
        ("3 × 4 ÷ 2 − 1", "5"),
        (" 0x1F ", "31"),
        ("+".join(["1"] * 1_900), "1900"),
        ("sin(5682936329203)", "0.8703154672931336"),
        ("cos(0) + tan(0)", "1"),
        ("round(2.675, 2)", "2.68"),
        ("min(3, 1/3, 2) * 3", "1"),
        ("max([1, 7, 3])", "7"),
        ("sum([1, 2, 3.5])", "6.5"),
        ("sum(1, 2)", "3"),
        ("pow(2, 10)", "1024"),
        ("64**(1/3)", "4"),
        ("floor(4000000000**0.4294967295)", "13306"),
        ("2**0.5", "1.4142135623730951"),
        ("sqrt(10**40)", "100000000000000000000"),
        ("sqrt(2)", "1.4142135623730951"),
        ("log(e)", "1"),
        ("log(1000, 10)", "3"),
        ("log10(0.001)", "-3"),
        ("floor(2.7) + ceil(-2.1)", "0"),
        ("factorial(20)", "2432902008176640000"),
    ],
)
async def test_results_are_exact(expression: str, result: str) -> None:
    assert (await called(CalculatorTool(), expression=expression)).content == result
    with localcontext() as context:
        context.flags[Inexact] = True  # inexact arithmetic elsewhere
        assert (await called(CalculatorTool(), expression="10**-5")).content == "0.00001"


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("9**9**9", "too large"),
        ("9" * 5_000, "4000 characters"),
        ("*".join(["9" * 100] * 39) + "*9**999", "too large"),
        ("sin(10**400)", "too large"),
        ("factorial(10**6)", "too large"),
        ("round(1, 10**9)", "places"),
        ("().__class__.__base__.__subclasses__()", "only known functions"),
        ("__import__('os').system('true')", "only known functions"),
        ("'a'*10**9", "not a number"),
        ("[1]*10**9", "lists"),
        ("(" * 1_900 + "1" + ")" * 1_900, "nested"),
        ("-" * 3_900 + "1", "nested"),
        ("1/0", "division by zero"),
        ("log(8, 1)", "division by zero"),
        ("sqrt(-1)", "not a real number"),
        ("(-8)**(1/3)", "not a real number"),
        ("(1/3)**8000*(1/3)**8000", "close to zero"),
        ("factorial(2.5)", "whole number"),
        ("pow(2, 3, 4)", "cannot take these arguments"),
        ("round(1.5, ndigits=0)", "named arguments"),
        ("2(3)", "products need"),
        ("1,000 + 1", "thousands separators"),
        ("price * 2", "'price' is not a number. Known names"),
        ("total(2)", "no function 'total'"),
        ("1j", "not a number"),
        ("max()", "at least one"),
        ("5!", "not an arithmetic expression"),
        ("   ", "empty"),
    ],
)
async def test_what_cannot_be_computed_is_refused_within_a_second(expression: str, reason: str) -> None:
    started = process_time()
    answer = await called(CalculatorTool(), expression=expression)
    assert answer.failed
    assert answer.text().startswith("Error: Calculation error: ")
    assert reason in answer.text()
    assert len(answer.text()) < 500
    assert process_time() - started < 1


async def test_the_costliest_permitted_expressions_end_within_a_second() -> None:
    fractions = "+".join(f"1/{divisor}" for divisor in range(3, 600))
    products = "+".join(["3**8000*7"] * 390)
    assert CalculatorTool().effects == frozenset()
    started = process_time()
    assert not (await called(CalculatorTool(), expression=fractions)).failed
    assert not (await called(CalculatorTool(), expression=products)).failed
    assert process_time() - started < 1
