"""Rows of the store's tables: from records and back, and inserted only if they may be."""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Table, literal, select
from sqlalchemy.dialects import postgresql, sqlite

T = TypeVar("T")


def to_row(table: Table, record: object, **given: Any) -> dict[str, Any]:
    """The fields of the record that are columns of the table, and what is `given` in their place."""
    names = [name for name in _fields_of(type(record)) if name in table.c and name not in given]
    return {name: getattr(record, name) for name in names} | given


def from_row(kind: type[T], row: Row[Any], **given: Any) -> T:
    """The record whose fields are the row's columns of their names, and what is `given` in their place."""
    columns = row._mapping
    names = [name for name in _fields_of(kind) if name in columns and name not in given]
    return kind(**{name: columns[name] for name in names}, **given)


@cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


def insert_new(connection: Connection, table: Table, row: Mapping[str, Any], *conditions: ColumnElement[bool]) -> bool:
    """Insert the row if these conditions hold, unless its key is taken; whether it was inserted."""
    insert = sqlite.insert if connection.dialect.name == "sqlite" else postgresql.insert
    if not conditions:
        return bool(connection.execute(insert(table).on_conflict_do_nothing(), row).rowcount)
    values = select(*(literal(value, table.c[name].type) for name, value in row.items())).where(*conditions)
    statement = insert(table).from_select(list(row), values).on_conflict_do_nothing()
    return bool(connection.execute(statement).rowcount)
