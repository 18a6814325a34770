"""OpenAPI documents as tools: what becomes of their operations, and which are left out for which reason."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from task.errors import SettingsError, ToolError
from task.permissions.hosts import is_internal
from task.product.opening import check
from task.settings import Settings
from task.tools.openapi.document import MOST_TOOLS, ApiOperation, ApiSpec, operations_of
from tests.support.api_peer import document

HOME = "https://library.example/openapi.json"


def read(described: Any, **chosen: Any) -> tuple[dict[str, ApiOperation], dict[str, str]]:
    return operations_of(json.dumps(described).encode(), ApiSpec("lib", HOME, **chosen))


def one(operation: Any, path: str = "/a", method: str = "get", **changes: Any) -> dict[str, Any]:
    """A document with one operation."""
    return document(paths={path: {method: {"operationId": "it", "responses": {}, **operation}}}, **changes)


def at(url: str, **variables: Any) -> dict[str, Any]:
    return one({"servers": [{"url": url, "variables": variables}]})


@pytest.mark.parametrize("version", ["3.0.3", "3.1.0"])
def test_operations_become_tools_whose_arguments_are_the_parameters_and_the_body(version: str) -> None:
    found, left_out = read(document(openapi=version))
    assert left_out == {}
    assert {name: (one.method, one.url, one.tool.read_only) for name, one in found.items()} == {
        "lib_findBooks": ("get", "https://library.example/v1/books{?tag*}", True),
        "lib_addBook": ("post", "https://library.example/v1/books", False),
        "lib_readBook": ("get", "https://library.example/v1/books/{id}", True),
        "lib_removeBook": ("delete", "https://library.example/v1/books/{id}", False),
    }
    assert found["lib_findBooks"].tool.description == "Find books."
    assert found["lib_findBooks"].tool.parameters["properties"]["X-Shelf"]["description"] == "Which shelf."
    # Without what the server sets, and without an end of what contains itself.
    added = found["lib_addBook"].tool.parameters["properties"]["body"]
    assert added["properties"] == {"title": {"type": "string"}, "of": {}}
    assert added["required"] == ["title"]
    titles = {"type": "array", "items": {"type": "string"}}
    body = {"requestBody": {"content": {"application/json": {"schema": titles}}}}
    [many] = read(one(body, method="put", openapi=version))[0].values()
    assert many.tool.parameters["properties"] == {"body": titles}


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ({"tags": ["admin"]}, {"lib_removeBook"}),
        (
            {"operations": ["*Book"], "tags": ["books"]},
            {"lib_findBooks", "lib_addBook", "lib_readBook", "lib_removeBook"},
        ),
        ({"operations": ["GET /books/{id}"]}, {"lib_readBook"}),
    ],
)
def test_operations_are_chosen_by_tag_id_or_place(chosen: Any, names: set[str]) -> None:
    assert read(document(), **chosen)[0].keys() == names


BODY = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/A"}}}}
}
TABLE = {"required": True, "content": {"text/csv": {}}}
CIRCLE = {
    "schemas": {"A": {"properties": {"a": {"$ref": "#/components/schemas/B"}}}, "B": {"$ref": "#/components/schemas/A"}}
}


def parameter(**given: Any) -> dict[str, Any]:
    return {"parameters": [{"name": "a", "in": "query", "required": True, "schema": {"type": "string"}, **given}]}


@pytest.mark.fault("openapi: references in a circle")
def test_what_refers_to_itself_is_offered_without_an_end() -> None:
    found, _ = read(one(BODY, method="post", components=CIRCLE))
    assert found["lib_it"].tool.parameters["properties"]["body"]["properties"] == {"a": {}}


@pytest.mark.fault("openapi: a reference to another document", case="a body elsewhere")
@pytest.mark.fault("openapi: a server at a link-local, metadata or other internal address", case="metadata")
@pytest.mark.fault("openapi: a broken operation", case="a broken parameter")
@pytest.mark.fault("openapi: a path, a server or a header that leads to another host", case="a path of another host")
@pytest.mark.parametrize(
    ("described", "reason"),
    [
        pytest.param(one({"requestBody": {"$ref": "b#/B"}}, method="put"), "another document", id="a body elsewhere"),
        pytest.param(one(parameter(schema={"$ref": "http://h/s"})), "another document", id="a schema elsewhere"),
        pytest.param(one({"parameters": [{"$ref": "#/no"}]}), "malformed", id="a reference to nothing"),
        pytest.param(one({"parameters": [{"name": "a", "in": "body"}]}), "malformed", id="a broken parameter"),
        pytest.param(one({"parameters": 7}), "malformed", id="parameters that are a number"),
        pytest.param(one(parameter(style="deepObject")), "not supported", id="a style"),
        pytest.param(one(parameter(**{"in": "cookie"})), "not supported", id="a cookie"),
        pytest.param(one({"parameters": [{}] * 10_000}), "more than 100", id="very many parameters"),
        pytest.param(one({}, path="/a/{b}"), "do not fit", id="a path with an undeclared part"),
        pytest.param(one({}, path="@evil.example/a"), "do not fit", id="a path of another host"),
        pytest.param(one(parameter(schema={"enum": ["x" * 30_000]})), "too large", id="a large schema"),
        pytest.param(one({"requestBody": TABLE}, method="post"), "not JSON", id="a table"),
        pytest.param(at("http://169.254.169.254/latest"), "internal", id="metadata"),
        pytest.param(at("http://2852039166/"), "internal", id="metadata as a number"),
        pytest.param(at("http://{host}:80/", host={"default": "[::ffff:10.0.0.1]"}), "internal", id="a variable"),
        pytest.param(at("http://localhost:9200"), "internal", id="this machine"),
        pytest.param(at("file:///etc"), "not an address", id="files"),
        pytest.param(at("https://user@library.example"), "not an address", id="a user"),
        pytest.param(at("http://[::1"), "malformed", id="no address"),
    ],
)  # fmt: skip
def test_an_operation_that_cannot_be_called_as_described_is_left_out(described: Any, reason: str) -> None:
    found, left_out = read(described)
    assert found == {}
    assert reason in next(iter(left_out.values()))


def test_a_secret_goes_to_hosts_that_the_settings_name_only() -> None:
    elsewhere = at("https://elsewhere.example/v1")
    assert "would get the secret" in read(elsewhere, secret="s3cret")[1]["GET /a"]
    assert read(elsewhere, secret="s3cret", hosts=["elsewhere.example:443"])[1] == {}
    assert read(elsewhere)[1] == {}
    assert (
        "would get the secret" in read(at("http://library.example:443/v1"), secret="s3cret")[1]["GET /a"]
    )  # in the clear
    assert read(document(), secret="s3cret")[1] == {}
    inside = at("http://10.0.0.7:9000/v1")
    assert read(inside, hosts=["10.0.0.7:9000"])[1] == {}
    assert "s3cret" not in repr(ApiSpec("lib", HOME, secret="s3cret"))


@pytest.mark.fault("openapi: headers of the connection, of credentials or of another method among the parameters")
def test_headers_that_are_not_the_callers_are_no_arguments() -> None:
    names = (
        "Authorization",
        "Cookie",
        "Host",
        "Content-Length",
        "X-HTTP-Method-Override",
        "X-Api-Key",
        "a b",
        "X-Fine",
    )
    headers = [{"name": name, "in": "header", "required": True, "schema": {"type": "string"}} for name in names]
    found, _ = read(one({"parameters": headers}), secret="s3cret", auth="x-api-key")
    assert found["lib_it"].tool.parameters["properties"].keys() == {"X-Fine"}


@pytest.mark.fault("openapi: several operations with one id, or several arguments of one name")
def test_of_operations_with_one_id_the_first_is_offered_and_of_arguments_with_one_name_none() -> None:
    twice = {method: {"operationId": "it", "responses": {}} for method in ("get", "delete")}
    found, left_out = read(document(paths={"/a": twice}), operations=["it", "GET /a"])
    assert [one.method for one in found.values()] == ["get"]
    assert "another operation has this id" in left_out["DELETE /a"]
    same = {"parameters": [{"name": "a", "in": where, "schema": {}} for where in ("query", "header")]}
    assert "several of its arguments" in read(one(same))[1]["GET /a"]


@pytest.mark.fault("openapi: a document of 10,000 operations")
def test_very_many_operations_have_to_be_chosen_from() -> None:
    paths = {f"/p{n}": {"get": {"operationId": f"o{n}", "tags": ["all"], "responses": {}}} for n in range(10_000)}
    for chosen in ({}, {"tags": ["all"]}):
        with pytest.raises(ToolError, match=f"More than {MOST_TOOLS} operations: choose"):
            read(document(paths=paths), **chosen)
    assert read(document(paths=paths), operations=["o7?"])[0].keys() == {f"lib_o7{n}" for n in range(10)}


BOMB = "openapi: 3.0.0\npaths: &a {}\n" + "".join(f"x{n}: [*a, *a]\n" for n in range(9))


@pytest.mark.fault("openapi: a YAML bomb, deep nesting, rubbish, or another kind of document")
@pytest.mark.parametrize(
    "content",
    [BOMB, "a: " + "[" * 50_000, '{"openapi": "3.0.0", "paths": ' + "[" * 50_000, "\0\xff", "", "[]", "swagger: '2.0'",
     "{}", "openapi: 3.0.0\npaths: 7", " " * 50 * 2**20],
    ids=["aliases", "deep", "deep JSON", "bytes", "empty", "a list", "Swagger", "nothing", "no paths", "50 MB"],
)  # fmt: skip
def test_what_is_not_such_a_document_is_refused(content: str) -> None:
    with pytest.raises(ToolError, match="It "):
        operations_of(content.encode("latin-1"), ApiSpec("lib", HOME))


def test_yaml_is_read_as_json_would_be() -> None:
    written = document(info={"title": "Library", "version": "2026-11-29"})
    text = str(yaml.safe_dump(written)).replace("'2026-11-29'", "2026-11-29").replace("'200'", "200")
    assert operations_of(text.encode(), ApiSpec("lib", HOME)) == read(written)


def test_the_schemas_of_arguments_can_be_checked() -> None:
    odd = {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "pattern": "^(a+)+$"}
    [operation] = read(one(parameter(schema=odd)))[0].values()
    Draft202012Validator.check_schema(operation.tool.parameters)
    assert operation.tool.parameters["properties"]["a"] == {"type": "integer", "minimum": 0}


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "0.0.0.0", "169.254.169.254", "168.63.129.16", "10.1.2.3", "100.64.0.1", "::1", "fd00::1",
     "fe80::1%eth0", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:a00:1::", "2001::1", "localhost", "x.localhost",
     "0x7f.1", "224.0.0.1"],
)  # fmt: skip
def test_addresses_inside_are_recognised(host: str) -> None:
    assert is_internal(host)
    assert not any(map(is_internal, ("8.8.8.8", "2606:4700::1111", "api.example.com")))


@pytest.mark.fault("openapi: a secret that is missing, or stands in the settings itself")
def test_a_secret_is_a_reference_and_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def settings(secret: str, **more: Any) -> Settings:
        return Settings.model_validate(
            {"data_dir": tmp_path, "openapi": [{"name": "lib", "document": HOME, "secret": secret, **more}]}
        )

    with pytest.raises(ValidationError, match="secret") as fault:
        settings("sk-live-123")
    assert "sk-live-123" not in str(fault.value.errors(include_input=False))
    for wrong in ("GHP_ABCDEF", str(tmp_path / "absent")):
        with pytest.raises(SettingsError, match="the secret of 'lib' is not where") as missing:
            check(settings(wrong))
        assert wrong not in str(missing.value)
    monkeypatch.setenv("LIBRARY_KEY", "s3cret")
    check(settings("LIBRARY_KEY"))
    with pytest.raises(SettingsError, match="two servers called 'lib'"):
        check(Settings.model_validate({"data_dir": tmp_path, "openapi": [{"name": "lib", "document": HOME}] * 2}))
