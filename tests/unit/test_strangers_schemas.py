"""Schemas that MCP servers write: reduced to keywords that are checked in time that grows with the arguments."""

import json
from functools import reduce
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from task.tools.mcp.mcp_tool_model import MCPToolModel, usable
from tests.support.schemas import ALL_OF_BOMB

REFS = {f"D{n}": {"properties": {f"q{m}": {"$ref": f"#/$defs/D{m}"} for m in range(30)}} for n in range(30)}
MANY = {"required": [f"p{n}" for n in range(5_000)]}
CASES: dict[str, dict[str, Any]] = {
    "itself": {"$ref": "#"},
    "itself in allOf": {"allOf": [{"$ref": "#"}], "properties": {"a": {"$ref": "#"}}},
    "allOf bomb": ALL_OF_BOMB,
    "references bomb": {"$ref": "#/$defs/D0", "$defs": REFS},
    "long lists": {"$defs": {"m": MANY}, "allOf": [{"$ref": "#/$defs/m"}] * 900},
    "long reference": {"allOf": [{"$ref": "#" + "/a" * 20_000}] * 2},
    "pattern": {"properties": {"a": {"pattern": "^(a+)+$"}}},
    "pattern of names": {"patternProperties": {"^(a+)+$": {}}, "propertyNames": {"pattern": "^(a+)+$"}},
    "pairs": {"properties": {"a": {"uniqueItems": True}}, "not": {"pattern": "^(a+)+$"}},
    "wrong kinds": {
        "type": 7, "required": [{}, 1], "minimum": "x", "items": [1], "properties": {"a": {"type": ["odd"], "enum": 1}}
    },
    "elsewhere": {"properties": {"a": {"$ref": "http://127.0.0.1:9/schema.json"}}},
}  # fmt: skip


@pytest.mark.fault("mcp: a schema that refers to itself")
@pytest.mark.fault("mcp: a schema made to be checked for ever")
@pytest.mark.parametrize("schema", CASES.values(), ids=CASES)
def test_a_strangers_schema_becomes_one_that_is_safe_to_check(schema: dict[str, Any]) -> None:
    tool = usable(MCPToolModel("it", "It.", schema))
    assert tool is not None
    written = json.dumps(tool.parameters)
    assert not [word for word in ("attern", "$ref", "allOf", "uniqueItems") if word in written]
    assert len(written) < 100_000
    Draft202012Validator.check_schema(tool.parameters)
    list(Draft202012Validator(tool.parameters).iter_errors({"a": "a" * 40 + "!"}))


@pytest.mark.fault("mcp: a schema made to be checked for ever")
@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"enum": ["x" * 100_000]}}},
        {"$defs": {"d": {"enum": ["x" * 50_000]}}, "properties": {n: {"$ref": "#/$defs/d"} for n in "abc"}},
        reduce(lambda inner, _: {"items": inner}, range(20_000), {}),
    ],
    ids=["large", "large when written out", "deep"],
)
def test_a_tool_whose_schema_is_too_large_is_not_offered(schema: dict[str, Any]) -> None:
    assert usable(MCPToolModel("it", "It.", schema)) is None


def test_what_can_be_checked_stays() -> None:
    plain = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Where.", "minLength": 1, "format": "uri", "default": ""},
            "days": {"type": ["integer", "null"], "minimum": 0, "exclusiveMaximum": 8},
            "unit": {"anyOf": [{"enum": ["C", "F"]}, {"type": "null"}], "title": "Unit"},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
            "more": {"type": "object", "additionalProperties": {"type": "number"}},
        },
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = usable(MCPToolModel("it", "It.", plain))
    assert tool is not None
    assert tool.parameters == plain
