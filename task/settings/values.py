"""What the settings are made of: sections, single settings, and the kinds of values they hold."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import available_timezones

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr


class Section(BaseModel):
    """A group of settings: unknown names are refused, and values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


def setting(default: Any, description: str, *, console: bool = False, bare: bool = False, **constraints: Any) -> Any:
    """A field with its default and its line in the settings page; `constraints` are those of pydantic's `Field`.

    `console`: it has an effect in the console and in `TEPSManager` only; `bare`: its variable has no prefix.
    """
    marks: dict[str, Any] = {name: True for name, marked in (("console", console), ("bare", bare)) if marked}
    return Field(default, description=description, json_schema_extra=marks or None, **constraints)


bare = partial(setting, bare=True)  # a setting whose documented variable has no prefix


def _http_url(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it must be an address such as http://localhost:8080")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("the address must not hold a user name, a query or a fragment")
    if parts.port == 0:
        raise ValueError("port 0 is not an address")
    return text.rstrip("/")


def _server_url(text: str) -> str:
    if not text.startswith("toolset:"):
        return _http_url(text)
    if not text.removeprefix("toolset:").strip("/"):
        raise ValueError("a toolset has a name: toolset:NAME")
    return text


def _like(pattern: str, form: str) -> AfterValidator:
    def check(value: str | SecretStr) -> str | SecretStr:
        if not re.fullmatch(pattern, value if isinstance(value, str) else value.get_secret_value()):
            raise ValueError(f"it must be {form}")
        return value

    return AfterValidator(check)


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not valid JSON: {error}") from None


def _list(value: Any) -> Any:
    if not isinstance(value, str) or value.lstrip()[:1] in ("[", "{"):
        return _json(value)
    return [item.strip() for item in value.split(",") if item.strip()]


def _mapping(value: Any) -> Any:
    if not isinstance(value, str) or value.lstrip().startswith("{"):
        return _json(value)
    pairs = [item.partition("=") for item in value.split(",") if item.strip()]
    if not all(separator for _, separator, _ in pairs):
        raise ValueError("it must be name=value pairs with commas between them")
    return {name.strip(): item.strip() for name, _, item in pairs}


def _zone(text: str) -> str:
    if text not in available_timezones():
        raise ValueError("it must be the name of a time zone, such as Europe/Berlin")
    return text


def _absolute(path: Path) -> Path:
    if not path.is_absolute():
        raise ValueError("the path must be absolute")
    return path


Listed = BeforeValidator(_list)  # text with commas, or JSON
AsJson = BeforeValidator(_json)
HttpUrl = Annotated[str, AfterValidator(_http_url)]
TimeZone = Annotated[str, AfterValidator(_zone)]
Texts = Annotated[list[str], Listed]
Origin = Annotated[str, _like(r"https?://[\w.-]+(:\d{1,5})?", "an origin such as https://chat.example.com")]
Origins = Annotated[list[Origin], Listed]
Beginning = Annotated[str, Field(pattern=r"\S")]  # how commands begin
Beginnings = Annotated[list[Beginning], Listed]
_OneOrMore = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
Commands = Annotated[tuple[Beginning, ...], _OneOrMore]
Paths = Annotated[list[Path], Listed]
TextMap = Annotated[dict[str, str], BeforeValidator(_mapping)]
Folder = Annotated[Path, AfterValidator(Path.expanduser)]
WholePath = Annotated[Folder, AfterValidator(_absolute)]
Port = Annotated[int, Field(ge=0, le=65535)]
_POSTGRES = "postgresql://user:password@host/name"
_REDIS = "an address such as redis://localhost:6379/0, rediss://… or unix:///folder/socket"
_EMBEDDINGS = "the name of a deployment, or an address such as https://host/v1/embeddings, without a key"
_HOST = r"(\[[^\]]+\]|[^@/?#\s:]+)(:\d{1,5})?"
EmbeddingsPlace = Annotated[str, _like(rf"[^\s:?#]*|https?://{_HOST}(/[^?#\s]*)?/embeddings(\?\S*)?", _EMBEDDINGS)]
PostgresUrl = Annotated[SecretStr, _like(r"postgres(ql)?://([^@/?#]*@)?[^@/?#]*([/?].*)?", _POSTGRES)]
RedisUrl = Annotated[SecretStr, _like(r"rediss?://([^/?#]*@)?[^@/?#:][^@/?#]*([/?].*)?|unix://.+", _REDIS)]
_NEVER_ITSELF = "the name of an environment variable in capitals, or the whole path of a file, never the secret itself"
SecretPlace = Annotated[str, _like(r"([A-Z][A-Z0-9_]*|/.+)?", _NEVER_ITSELF)]
StoreUrl = Annotated[SecretStr, _like(r"(sqlite:///|postgres(ql)?://).*", f"sqlite:///folder/file.db or {_POSTGRES}")]
ServerUrl = Annotated[str, AfterValidator(_server_url)]
Capitals = BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)
LogLevel = Annotated[Literal["DEBUG", "INFO", "WARNING", "ERROR"], Capitals]
