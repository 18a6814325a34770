"""What an MCP server tells about one of its tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MCPToolModel:
    """Metadata of one tool. Source: API reference, MCPToolModel.

    `parameters` is a JSON Schema of an object. `read_only` and `idempotent` are the server's own claims; only a tool
    with one of them is ever called twice for one call of the model.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    read_only: bool = False
    idempotent: bool = False

    @property
    def repeatable(self) -> bool:
        return self.read_only or self.idempotent
