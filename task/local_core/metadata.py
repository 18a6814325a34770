"""Describe stored files and folders the way Core's metadata calls do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from task.local_core.responses import Refusal
from task.local_core.storage import StoredFile
from task.local_core.urls import RESOURCE_TYPES, ResourceUrl, parse

MAX_LIMIT = 1000

_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,9}")

Node = dict[str, Any]
Permissions = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True)
class ListingQuery:
    """How much of a folder is requested; `token` is the key of the last node that the caller has."""

    recursive: bool = False
    limit: int = 100
    token: str = ""
    permissions: bool = False

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Self:
        """Raises Refusal 400 when a parameter is out of its range."""
        limit, recursive = query.get("limit", "100"), query.get("recursive", "false").lower()
        if recursive not in {"true", "false"} or not _WHOLE_NUMBER.fullmatch(limit):
            text = f"Bad query parameters. Limit must be in [0, {MAX_LIMIT}] range. Recursive must be true/false"
            raise Refusal(400, text)
        if not 0 <= int(limit) <= MAX_LIMIT:
            raise Refusal(400, f"Limit is out of allowed range: [0, {MAX_LIMIT}]")
        permissions = query.get("permissions", "false").lower() == "true"
        return cls(recursive == "true", int(limit), query.get("token", ""), permissions)


def item_node(stored: StoredFile, permissions: Permissions | None = None) -> Node:
    """A file, conversation or prompt, with its etag; only files have a size and type."""
    url = parse(stored.url)
    content = {"contentLength": stored.size, "contentType": stored.content_type} if url.type == "files" else {}
    return _node(url, "ITEM", permissions) | {
        "createdAt": stored.created_at,
        "updatedAt": stored.updated_at,
        "etag": stored.etag,
        "author": stored.author,
        **content,
    }


def folder_node(
    folder: ResourceUrl, files: Sequence[StoredFile], query: ListingQuery, permissions: Permissions
) -> Node:
    """One page of a folder. `files` are all below it, in the order of their paths; its own sub-folders are nodes too,
    unless the query is recursive."""
    shown = permissions if query.permissions else None
    later = [pair for pair in _keyed(folder, files, query.recursive) if pair[0] > query.token]
    page = later[: query.limit]
    items = [
        _node(entry, "FOLDER", shown) if isinstance(entry, ResourceUrl) else _listed(entry, shown) for _, entry in page
    ]
    more = {"nextToken": page[-1][0]} if page and len(later) > len(page) else {}
    return _node(folder, "FOLDER", shown) | {"items": items} | more


def _keyed(
    folder: ResourceUrl, files: Sequence[StoredFile], recursive: bool
) -> Iterator[tuple[str, ResourceUrl | StoredFile]]:
    depth = len(folder.segments) + 1
    last: ResourceUrl | None = None
    for stored in files:
        url = parse(stored.url)
        if recursive or len(url.segments) == depth:
            yield url.path, stored
            continue
        below = ResourceUrl(url.type, url.bucket, url.segments[:depth], is_folder=True)
        if below != last:
            last = below
            yield below.path, below


def _listed(stored: StoredFile, permissions: Permissions | None) -> Node:
    node = item_node(stored, permissions)
    del node["etag"]  # Core's listings carry none
    return node


def _node(resource: ResourceUrl, node_type: str, permissions: Permissions | None) -> Node:
    known = {
        "name": resource.name,
        "parentPath": resource.parent_path,
        "bucket": resource.bucket,
        "url": resource.url,
        "nodeType": node_type,
        "resourceType": RESOURCE_TYPES[resource.type],
        "permissions": permissions(resource.url) if permissions else None,
    }
    return {name: value for name, value in known.items() if value is not None}
