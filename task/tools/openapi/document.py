"""Read an OpenAPI document, 3.0 or 3.1, into the operations that a model may call."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from typing import Any
from urllib.parse import quote

import orjson
import yaml
from yarl import URL

from task.errors import ToolError
from task.llm.schemas import STRANGERS, Schemas
from task.permissions.hosts import is_internal
from task.tools.mcp.mcp_tool_model import MCPToolModel, fit, usable

READING = ("get", "head")
METHODS = (*READING, "post", "put", "patch", "delete")
LARGEST_DOCUMENT = 2**24  # bytes
MOST_TOOLS, MOST_PARAMETERS = 100, 100  # of a document, of an operation
DEEPEST, LONGEST_TEXT, LONGEST_SCHEMA = 100, 2_000, 20_000
_STYLES = {"path": (None, "simple"), "query": (None, "form"), "header": (None, "simple")}  # the standard's defaults
# No header of the connection, of credentials, or that makes another request of it. Source: RFC 9110, 5.6.2
_HEADER = re.compile(
    r"(?i:(?!(?:accept|authorization|connection|content-.*|cookie.*|expect|forwarded|host|keep-alive|te|trailer|via|"
    r"transfer-.*|upgrade|proxy-.*|sec-.*|x-forwarded-.*|x-http-method.*|x-method-.*)$)[!#$%&'*+.^_`|~0-9a-z-]{1,100})"
)
_JSON = re.compile(r"application/([\w.-]+\+)?json\b", re.IGNORECASE)
VARIABLE = re.compile(r"\{([^{}]*)\}")
_IN_PATHS = "/{}:@!$&'()*+,;=~%"  # which stay as they are there
_BROKEN = (AttributeError, LookupError, TypeError, ValueError)


class LeftOut(Exception):
    """Why an operation is not offered."""


@dataclass(frozen=True, slots=True)
class ApiSpec:
    """An API of the settings, which describe the fields; `secret` is the value that theirs refers to."""

    name: str
    document: str
    tags: Sequence[str] = ()
    operations: Sequence[str] = ()
    hosts: Sequence[str] = ()
    secret: str = field(default="", repr=False)
    auth: str = "bearer"
    seconds: float = 60.0

    def names(self, url: URL) -> bool:
        """Whether the settings name the host of the address: it may be an internal one, and may get the secret."""
        if self.document.startswith("http") and url.origin() == URL(self.document).origin():
            return True
        return not {url.host, f"{url.host}:{url.port}"}.isdisjoint(self.hosts)


@dataclass(frozen=True, slots=True)
class ApiOperation:
    """One operation as a tool; `url` is a template (RFC 6570), `media` the type of the body, or empty.

    `places` says of each argument whether it is of the `url`, a `header` or the `body`, and its name there.
    """

    tool: MCPToolModel
    method: str
    url: str
    places: Mapping[str, tuple[str, str]]
    media: str


def operations_of(content: bytes, spec: ApiSpec) -> tuple[dict[str, ApiOperation], dict[str, str]]:
    """The operations that the settings choose, by their tools' names, and why others that they choose are left out.

    Raises:
        ToolError: it is not an OpenAPI document that can be read, or it has too many operations for all to be offered.
    """
    document, operations, left_out = _parsed(content), dict[str, ApiOperation](), dict[str, str]()
    items = {path: Schemas(document).resolved(item) for path, item in document["paths"].items()}
    unmet, everything = set(spec.operations), not (spec.tags or spec.operations)
    for path, method in product(items, METHODS):
        if not isinstance(raw := items[path].get(method), dict):
            continue
        place = f"{method.upper()} {path}"
        own = str(raw.get("operationId") or place)
        unmet -= (naming := {one for one in spec.operations if fnmatchcase(own, one) or fnmatchcase(place, one)})
        try:
            if naming or everything or not set(spec.tags).isdisjoint(raw.get("tags") or ()):
                if len(operations) + len(left_out) == MOST_TOOLS:
                    raise ToolError(f"More than {MOST_TOOLS} operations: choose from them by `tags` or `operations`.")
                if (name := fit(f"{spec.name}_{own}")) in operations:
                    raise LeftOut("another operation has this id")
                operations[name] = _Reader(document, spec).operation(name, method, path, items[path], raw)
        except LeftOut as reason:
            left_out[place] = str(reason)
        except _BROKEN:
            left_out[place] = "it is malformed"
    return operations, left_out | dict.fromkeys(unmet, "there is no such operation")


def _parsed(content: bytes) -> dict[str, Any]:
    if len(content) > LARGEST_DOCUMENT:
        raise ToolError(f"It is larger than {LARGEST_DOCUMENT:,} bytes.")
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        if content.lstrip()[:1] != b"{":
            for event in yaml.parse(content, Loader=loader):
                depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
                if isinstance(event, yaml.AliasEvent) or depth > DEEPEST:  # a few lines of them become gigabytes
                    raise ToolError("It has aliases of YAML, or is nested too deeply.")
            content = orjson.dumps(yaml.load(content, Loader=loader), option=orjson.OPT_NON_STR_KEYS)  # noqa: S506
        document = orjson.loads(content)
        if re.match(r"3\.[01]\b", str(document["openapi"])) and document["paths"].keys():
            return document
    except (*_BROKEN, yaml.YAMLError):
        pass
    raise ToolError("It is not an OpenAPI document of version 3.0 or 3.1 with paths, in JSON or YAML.")


class _Reader:
    """Reads one operation: its parameters and its body become the properties of one object."""

    def __init__(self, document: dict[str, Any], spec: ApiSpec) -> None:
        from openapi_pydantic.v3 import v3_0, v3_1

        self._document, self._spec = document, spec
        self._models: Any = v3_0 if str(document["openapi"]).startswith("3.0") else v3_1
        self._schemas = Schemas(document, (*STRANGERS, "readOnly"))
        self._places, self._shapes, self._required = dict[str, tuple[str, str]](), dict[str, Any](), list[str]()

    def operation(self, name: str, method: str, path: str, item: dict[str, Any], raw: dict[str, Any]) -> ApiOperation:
        """Raises: LeftOut: it is broken, needs what is not supported, or leads where it must not."""
        listed = [*(item.get("parameters") or ()), *(raw.get("parameters") or ())]
        if len(listed) > MOST_PARAMETERS:
            raise LeftOut(f"it has more than {MOST_PARAMETERS} parameters")
        both = [self._schemas.resolved(one) for one in listed]
        given = [*{(one["in"], one["name"]): one for one in both}.values()]  # the operation's own count
        body = self._schemas.resolved(raw.get("requestBody")) if method not in READING else {}
        whole = {key: raw[key] for key in ("summary", "description") if key in raw}
        whole |= {"parameters": given, "requestBody": body or None, "responses": {}}
        servers = raw.get("servers") or item.get("servers") or self._document.get("servers") or [{"url": "/"}]
        model = self._models.Operation.model_validate({**whole, "servers": servers})
        queries = [self._add_parameter(*both) for both in zip(model.parameters, given, strict=True)]
        content, required = body.get("content", {}), body.get("required") is True
        if media := next(filter(_JSON.match, content), ""):
            shape = self._schemas.simple(content[media].get("schema"))
            if "properties" in shape:
                kept = {name: one for name, one in shape["properties"].items() if not one.get("readOnly")}
                needed = [name for name in shape.get("required", ()) if name in kept]
                shape |= {"properties": kept, "required": needed}
            self._add("body", "body", shape, required=required)
        elif required:
            raise LeftOut("its body is not JSON")
        if self._schemas.external:
            raise LeftOut("it refers to another document")
        named = {own for where, own in self._places.values() if where == "url"}
        if not path.startswith("/") or not named.issuperset(VARIABLE.findall(path)):
            raise LeftOut("its path and its path parameters do not fit together")
        text = "\n\n".join(filter(None, (model.summary, model.description))) or f"{method.upper()} {path}"
        parameters = {"type": "object", "properties": self._shapes, "required": self._required}
        tool = usable(MCPToolModel(name, text[:LONGEST_TEXT], parameters, method in READING), LONGEST_SCHEMA)
        if tool is None:
            raise LeftOut("the schema of its arguments is too large")
        query = ",".join(filter(None, queries))
        url = f"{self._base(model.servers[0])}{quote(path, _IN_PATHS)}{f'{{?{query}}}' if query else ''}"
        return ApiOperation(tool, method, url, self._places, media)

    def _base(self, server: Any) -> str:
        variables = {name: one.default for name, one in (server.variables or {}).items()}
        url = URL(VARIABLE.sub(lambda found: variables.get(found[1], ""), server.url))
        if not url.absolute and self._spec.document.startswith("http"):
            url = URL(self._spec.document).join(url)
        if url.scheme not in ("http", "https") or not url.host or url.user or url.password or url.query or url.fragment:
            raise LeftOut("its server is not an address with http or https")
        if not self._spec.names(url) and (self._spec.secret or is_internal(url.host)):
            raise LeftOut(f"`hosts` does not name {url.host}, which is internal, or would get the secret")
        return str(url).rstrip("/")

    def _add_parameter(self, parameter: Any, raw: dict[str, Any]) -> str:
        """How the parameter stands in the query, if it does."""
        where, name, schema = parameter.param_in.value, parameter.name, raw.get("schema")
        if where == "header" and (not _HEADER.fullmatch(name) or name.lower() == self._spec.auth.lower()):
            return ""
        shape = self._schemas.simple(schema) | ({"description": parameter.description} if parameter.description else {})
        if parameter.style not in _STYLES.get(where, ()) or schema is None or shape.get("type") == "object":
            if parameter.required:
                raise LeftOut(f"its parameter {name[:80]} is to be written in a way that is not supported")
            return ""
        own = name if where == "header" else quote(name, "")
        self._add("header" if where == "header" else "url", own, shape, required=parameter.required or where == "path")
        return f"{own}{'' if parameter.explode is False else '*'}" if where == "query" else ""

    def _add(self, where: str, own: str, shape: dict[str, Any], *, required: bool) -> None:
        if (name := fit(own)) in self._places:
            raise LeftOut(f"several of its arguments are called {name}")
        self._places[name], self._shapes[name] = (where, own), shape
        self._required += [name] if required else []
