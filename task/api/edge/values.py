"""The values of request bodies: text and JSON that can be kept and sent on, numbers that fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import AfterValidator, Discriminator, Field, Tag

INTEGERS = 2**63
T = TypeVar("T")


def check_names(names: Sequence[str]) -> None:
    """Refuse tools of the same name: calls of them could not be told apart."""
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"two tools are called {name!r}")


def _sendable(value: dict[str, Any]) -> dict[str, Any]:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        raise ValueError("holds half a surrogate pair, or a number or a depth that is too large") from None
    return value


def _kind(value: object) -> str:
    return "(items)" if isinstance(value, list) else "(text)"


# A bound has the string read as UTF-8: without one, half a surrogate pair would pass.
Text = Annotated[str, Field(min_length=0)]
# In brackets: what stands there names our types, no place in a request.
TextOr = Annotated[Annotated[Text, Tag("(text)")] | Annotated[T, Tag("(items)")], Discriminator(_kind)]
Filled = Annotated[str, Field(min_length=1)]
Json = Annotated[dict[str, Any], AfterValidator(_sendable)]
Tokens = Annotated[int, Field(ge=1, lt=2**31)]
Seed = Annotated[int, Field(ge=-INTEGERS, lt=INTEGERS)]
