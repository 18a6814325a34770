"""Models, applications and toolsets by name and in lists; users' applications, and what those of a type are given."""

import asyncio
import io
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict
from pydantic import ValidationError

from task.local.core import files
from task.local.core.access import PRINCIPAL, parse
from task.local.core.config import CoreApplication, Deployment, ListedEntry, Model
from task.local.core.core import CORE, Core, usable
from task.local.core.responses import Refusal, json_object, json_response

TYPE = "dial:applicationType"  # begins the keywords of a type
INVALID = "Custom application validation failed"
SINCE = 1672534800  # Core gives every configured deployment this same time, in seconds
UNLISTED = {
    *("name", "type", "endpoint", "upstreams", "features", "user_roles", "mcp"),
    *("forward_auth_token", "forward_per_request_key"),
}
Json = dict[str, Any]


async def list_entries(request: web.Request) -> web.Response:
    """The models, applications or toolsets that the caller may use; deployments are the models."""
    entries = [await described(request, entry) for entry in await _visible(request, request.match_info["section"])]
    return json_response({"data": entries, "object": "list"})


async def show_entry(request: web.Request) -> web.Response:
    """One of them."""
    section, name = request.match_info["section"], request.match_info["id"]
    found = await application(request, name) if section == "applications" else _section(request, section).get(name)
    return json_response(await described(request, usable(request, found)))


async def list_names(request: web.Request) -> web.Response:
    """Ids and kinds, of the kinds in `type` alone where it is given."""
    kinds = (request.query.get("type") or "model,application,toolset").split(",")
    known = [kind for kind in ("model", "application", "toolset") if kind in kinds]
    found = [{"id": entry.name, "object": kind} for kind in known for entry in await _visible(request, f"{kind}s")]
    return json_response(found)


async def show_user(request: web.Request) -> web.Response:
    """The caller's roles with the project of the key."""
    return json_response({"roles": list(request[PRINCIPAL].roles), "project": request[PRINCIPAL].project})


def _section(request: web.Request, name: str) -> Mapping[str, ListedEntry]:
    config = request.app[CORE].config
    return {"applications": config.applications, "toolsets": config.toolsets}.get(name, config.models)


async def _visible(request: web.Request, section: str) -> Iterable[ListedEntry]:
    entries: Iterable[ListedEntry | None] = _section(request, section).values()
    core, user = request.app[CORE], replace(request[PRINCIPAL], key=None)
    if section == "applications" and (core.settings.version > 25 or request[PRINCIPAL] == user):
        kept = await asyncio.to_thread(core.store.list, user, f"applications/{core.access.id_of(user.owner)}/")
        entries = [await application(request, name) for name in (*core.config.applications, *(f.url for f in kept))]
    return (entry for entry in entries if entry is not None and request[PRINCIPAL].may_use(entry.user_roles))


async def described(request: web.Request, entry: ListedEntry) -> Json:
    """An entry as the listings show it to this caller: in snake_case, without nulls."""
    shown: Json = entry.model_dump(exclude=UNLISTED, exclude_none=True) | {
        "id": entry.name,
        entry.kind: entry.name,
        "object": entry.kind,
        "reference": entry.reference or entry.name,
        "owner": "organization-owner",
        "status": "succeeded",
        "created_at": SINCE,
        "updated_at": SINCE,
    }
    if isinstance(entry, CoreApplication) and entry.application_type_schema_id:
        caller = request[PRINCIPAL]  # only its user finds a stored application, so there the user is its owner
        if caller.key.deployment != entry.name if caller.key else entry.name in request.app[CORE].config.applications:
            shown["application_properties"] = await properties_of(request.app[CORE], entry, "client")
    if isinstance(entry, Deployment):
        # An endpoint counts as the feature behind it.
        features = {
            name.removesuffix("_endpoint").removesuffix("_supported"): bool(value) if "_endpoint" in name else value
            for name, value in _snake_case(entry.features.model_dump()).items()
        }
        if features["temperature"] is None:
            features["temperature"] = request.app[CORE].settings.version < 49
        of_all = {"mcp": getattr(entry, "mcp", None) is not None, "chat_completion": True, "responses_api": False}
        shown["features"] = of_all | features
        if not entry.input_attachment_types:
            shown["max_input_attachments"] = 0
    if isinstance(entry, Model):
        shown["lifecycle_status"] = "generally-available"
        shown["capabilities"] = {
            "scale_types": ["standard"],
            "completion": entry.type == "completion",
            "chat_completion": entry.is_chat,
            "embeddings": entry.type == "embedding",
            "fine_tune": False,
            "inference": False,
        }
    return shown | {name: _snake_case(shown[name]) for name in ("limits", "pricing") if name in shown}


def _snake_case(fields: Mapping[str, Any]) -> Json:
    return {re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name): value for name, value in fields.items()}


async def application(request: web.Request, name: str) -> CoreApplication | None:
    """The configured or stored application, with its type's endpoints. Raises: Refusal 403 for another user's."""
    core, user = request.app[CORE], request[PRINCIPAL]
    user = user if core.settings.version <= 25 else replace(user, key=None)  # 0.25 hides them from other applications
    found = core.config.applications.get(name)
    if found is None and name.startswith("applications/"):
        try:
            url = parse(quote(name, safe="/$!'()*,;&=@:+~")).url
        except Refusal:
            return None
        if (opened := await asyncio.to_thread(core.store.open, user, url)) is not None:
            with opened[1] as content:
                found = CoreApplication.model_validate({**json.load(content), "name": url})
    if found is None or (schema := await type_of(core, found)) is None:
        return found
    kinds = {kind: f"{TYPE}{kind}Endpoint" for kind in ("Configuration", "Rate") if core.settings.version > 25}
    endpoints = {f"{kind.lower()}_endpoint": schema[name] for kind, name in kinds.items() if name in schema}
    features = found.features.model_copy(update=endpoints)
    return found.model_copy(update={"endpoint": schema.get(f"{TYPE}CompletionEndpoint"), "features": features})


async def type_of(core: Core, entry: CoreApplication) -> Json | None:
    """The JSON Schema of the application's type, as the configuration has it while its endpoint does not answer."""
    wanted, known = entry.application_type_schema_id, core.config.application_type_schemas
    schema = next((schema for schema in known if schema.get("$id") == wanted), None)
    address = (schema or {}).get(f"{TYPE}SchemaEndpoint") if core.settings.version >= 41 else None
    if wanted is None or schema is None or address is None:
        return schema
    if wanted not in core.types:
        try:
            async with core.session.get(address, timeout=aiohttp.ClientTimeout(5), raise_for_status=True) as response:
                found = schema | json_object(await response.read())
        except (aiohttp.ClientError, TimeoutError, Refusal):
            return schema
        root = {name: value for name, value in schema.items() if name.startswith(("dial:", "$id", "$schema"))}
        core.types[wanted] = found | root
    return core.types[wanted]


async def write_application(request: web.Request) -> web.Response:
    """Store an application. Raises: Refusal 400 where it or a property is not valid, 403 for a file of others."""
    core, caller = request.app[CORE], request[PRINCIPAL]
    resource = files.requested(request, "READ_WRITE", "Application name is missing")
    files.check_new_name(resource)
    document = json_object(await request.read())
    try:
        entry = CoreApplication.model_validate({**document, "name": resource.url})
    except ValidationError:
        raise Refusal(400, INVALID) from None
    if entry.application_type_schema_id:
        await files_of(request, entry)
    elif not entry.endpoint:
        raise Refusal(400, "Application endpoint or function must be provided")
    content, kind = io.BytesIO(orjson.dumps(document)), "application/json"
    check, author = partial(files.check_conditions, request.headers), caller.author
    kept = await asyncio.to_thread(core.store.keep, caller, resource.url, content, kind, author, check)
    return json_response(files.item_node(kept), headers={"ETag": kept.etag})


async def hand_over(request: web.Request, entry: CoreApplication, headers: CIMultiDict[str], body: Json) -> list[str]:
    """Write what an application of a type is told about itself into its request; returns the files it may read."""
    core, found = request.app[CORE], await files_of(request, entry)
    if core.settings.version <= 25:
        known = await properties_of(core, entry, "server") | dict.fromkeys(map(str, range(len(found))))  # as 0.25 does
        body["custom_fields"] = (body.get("custom_fields") or {}) | {"application_properties": known}
        return found
    headers["X-DIAL-APPLICATION-ID"] = entry.name
    if (await type_of(core, entry) or {}).get("dial:appendApplicationPropertiesHeader") is True:
        headers["X-DIAL-APPLICATION-PROPERTIES"] = json.dumps(entry.application_properties)
    return found


async def properties_of(core: Core, entry: CoreApplication, kind: str) -> Json:
    """The properties that the type marks as `client` or `server` ones."""
    rules, given = (await type_of(core, entry) or {}).get("properties", {}), entry.application_properties or {}
    kinds = {name: rule.get("dial:meta", {}).get("dial:propertyKind") for name, rule in rules.items()}
    return {name: value for name, value in given.items() if kinds.get(name) == kind}


async def files_of(request: web.Request, entry: CoreApplication) -> list[str]:
    """The files and folders in the properties. Raises: Refusal 400 for unfit properties, 403 for a foreign file."""
    from jsonschema import Draft202012Validator, validators
    from referencing import Registry

    core, user, urls = request.app[CORE], replace(request[PRINCIPAL], key=None), list[str]()
    marked = "dial:meta" if core.settings.version <= 25 else "dial:file"  # 0.25 wants both in one place
    collect: Any = lambda _, __, url, rule: urls.append(url) if rule.get("dial:file") is True else None  # noqa: E731
    reader, schema = validators.extend(Draft202012Validator, {marked: collect}), await type_of(core, entry)
    # An empty registry: nothing that a schema refers to is downloaded.
    if schema is None or not reader(schema, registry=Registry()).is_valid(entry.application_properties):
        raise Refusal(400, INVALID)
    try:
        for file in map(parse, urls):
            core.access.require(user, file, "READ")
            if not file.is_folder and await asyncio.to_thread(core.store.read, user, file.url) is None:
                raise Refusal(404)
    except Refusal:
        raise Refusal(403, f"Failed to access application resource {', '.join(urls)}") from None
    return [parse(url).url for url in urls]
