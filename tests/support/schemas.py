"""JSON Schemas that were made to take for ever."""

from typing import Any

ALL_OF_BOMB: dict[str, Any] = {
    "$ref": "#/$defs/d0",
    "$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 10} for n in range(20)},
}
"""Ten references in each of twenty levels."""
