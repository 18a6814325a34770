"""Numbers as a person writes them."""

from __future__ import annotations

from decimal import Decimal, Inexact, localcontext
from fractions import Fraction

_EXACT_DIGITS = 34
_ROUNDED_DIGITS = 17
_FLOAT_RANGE = 300


def shown(value: float | Fraction) -> str:
    """An int in full, a terminating fraction as its exact decimal, anything else as the nearest float."""
    if isinstance(value, Fraction):
        return _fraction(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)


def _fraction(value: Fraction) -> str:
    with localcontext(prec=_EXACT_DIGITS) as context:
        context.clear_flags()  # it starts with the flags of whoever calculated before
        decimal = Decimal(value.numerator) / Decimal(value.denominator)
        if not context.flags[Inexact]:
            return _plain(decimal)
        context.prec = _ROUNDED_DIGITS
        return repr(float(decimal)) if -_FLOAT_RANGE < decimal.adjusted() < _FLOAT_RANGE else _plain(+decimal)


def _plain(decimal: Decimal) -> str:
    if -7 <= decimal.adjusted() < _EXACT_DIGITS:
        text = format(decimal, "f")
        return text.rstrip("0").rstrip(".") if "." in text else text
    return format(decimal.normalize(), "e")
