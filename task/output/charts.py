"""Make a Plotly chart that code or another model has written load nothing and lead nowhere."""

import json
import re

from pydantic import JsonValue

CHART = "application/vnd.plotly.v1+json"
_PICTURE = re.compile(r"data:image/[a-z+.-]+[;,][^\s\"'()<>\\]*+", re.IGNORECASE)
_SCHEME = re.compile(r"(?<=[a-z0-9]):(?=[/\\])", re.IGNORECASE)
_SPECIAL = re.compile(r"\b(https?|wss?|ftp|blob|javascript|vbscript):(?=\S)|\b(data):(?=[a-z]+/)", re.IGNORECASE)
_NO_SCHEME = re.compile(r"(?<![^\s\"'(=,;])[/\\]{2}(?=[\w\[])")
_TAG = re.compile(r"<(/?[a-z]{1,8})(?![a-z])[^<>]*+>", re.IGNORECASE)  # as Plotly recognises one
_TEX = re.compile(r"\\(?=href|url|require|includegraphics|style|class|html)", re.IGNORECASE)
_MAP = re.compile(r"(?:mapbox|map)\d*")
_ON_MAPS = re.compile(r"(?:scatter|choropleth|density)(mapbox|map)")
_WITHOUT_TILES = "white-bg"  # the only style that Plotly draws without a server


def is_chart(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == CHART


def without_remote_sources(chart: bytes) -> bytes:
    """The chart with nothing in it that a browser would load from elsewhere or follow; its numbers are unchanged.

    Pictures remain if they are part of the chart, maps lose their tiles, and addresses in texts are defanged.

    Raises:
        ValueError: it is not a chart.
    """
    try:
        kept = _without_sources(json.loads(chart, parse_constant=lambda _: None), "")
        if not isinstance(kept, dict):
            raise ValueError("it is not a JSON object")  # noqa: TRY004
        # A map that the layout does not describe would have tiles.
        traces, layout = kept.get("data"), kept.setdefault("layout", {})
        for trace in traces if isinstance(traces, list) else ():
            on_map = _ON_MAPS.fullmatch(str(trace.get("type"))) if isinstance(trace, dict) else None
            if on_map and isinstance(trace, dict) and isinstance(layout, dict):
                layout.setdefault(str(trace.get("subplot", on_map[1])), {"style": _WITHOUT_TILES})
        return json.dumps(kept, separators=(",", ":"), allow_nan=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _without_sources(value: JsonValue, key: str) -> JsonValue:
    if isinstance(value, str):
        return value if key == "bdata" else _inert(value)  # numbers as base64
    if isinstance(value, list):
        items = [_without_sources(item, key) for item in value]
        return [item for item in items if isinstance(item, dict) and "source" in item] if key == "images" else items
    if not isinstance(value, dict):
        return value
    members: dict[str, JsonValue] = {}
    for name, item in value.items():
        remote = name in ("source", "geojson") and isinstance(item, str) and _PICTURE.fullmatch(item) is None
        if name == "config" or remote:
            continue
        kept = _without_sources(item, name)
        if key == "layout" and _MAP.fullmatch(name) and isinstance(kept, dict):
            kept |= {"style": _WITHOUT_TILES, "layers": []}
        members[_inert(name)] = kept
    return members


def _inert(text: str) -> str:
    if _PICTURE.fullmatch(text):
        return text
    text = _TAG.sub(r"<\1>", _TEX.sub("", text))
    return _NO_SCHEME.sub("[//]", _SPECIAL.sub(r"\1\2[:]", _SCHEME.sub("[:]", text)))
