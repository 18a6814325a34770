"""The parameters that listings have in common."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import AfterValidator

from task.store.records import position


def _checked(cursor: str | None) -> str | None:
    if cursor is not None:
        position(cursor)
    return cursor


Limit = Annotated[int, Query(ge=1, le=1000)]
QueryText = Annotated[str | None, Query(max_length=200)]
Cursor = Annotated[str | None, Query(max_length=200), AfterValidator(_checked)]
QueryTime = Annotated[float | None, Query(description="Seconds since 1970.")]
