"""The body of a move or copy."""

from __future__ import annotations

from pydantic import BaseModel, Field, ValidationError

from task.local_core.refusal import Refusal


class Transfer(BaseModel):
    """From where to where, as relative URLs, and whether a file that is there may be replaced."""

    source_url: str = Field(alias="sourceUrl")
    destination_url: str = Field(alias="destinationUrl")
    overwrite: bool = False


def parse_transfer(body: bytes) -> Transfer:
    """Raises Refusal 400 when the body is something else."""
    try:
        return Transfer.model_validate_json(body)
    except ValidationError as error:
        raise Refusal(400, "Request body must have sourceUrl and destinationUrl") from error
