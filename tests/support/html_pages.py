"""HTML documents and the Markdown expected from each."""

from dataclasses import dataclass

SCENARIO_7 = (
    "<!DOCTYPE html><html><head><title>Test Document</title><style>p { color: red }</style></head><body>"
    "<h1>Test Document</h1><p>This is a paragraph with <b>bold text</b>.</p>"
    "<script>alert('should be removed');</script></body></html>"
)
"""The document of validation scenario 7."""

_SITE = """<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Pumps - Example</title></head><body>
<header role="banner"><a href="/">Example</a></header>
<nav><ul><li><a href="/">Home</a></li><li><a href="/about">About us</a></li></ul></nav>
<div class="cookie-banner">We value your privacy. <button>Accept all cookies</button></div>
<main><article><h1>Pumps</h1>
<p>A pump moves a liquid. This guide, kept at <a href="https://example.org/pumps">the library</a>, tells the two kinds
that are in daily use apart, and says how to start them with <code>pump.start()</code> when they have been dry.</p>
<h2>Kinds</h2>
<ul><li>Gear pump, for thick liquids such as oil</li><li>Vane pump, for thin liquids
<ul><li>sliding vanes inside</li></ul></li></ul>
<table><caption>Flow of the kinds</caption><tr><th>Name</th><th>Litres per minute</th></tr>
<tr><td>Gear</td><td>10</td></tr><tr><td>Vane</td><td>25</td></tr></table>
<h2>Starting</h2><ol><li>Open the inlet valve completely</li><li>Start the motor of the pump</li></ol>
<pre><code class="language-python">def start(pump):
    pump.prime()

    return pump.start()
</code></pre>
</article></main>
<aside class="sidebar">Related articles you may like</aside>
<footer>Copyright, imprint and terms of use</footer>
<script>track("visit")</script></body></html>"""
_SITE_TEXT = """# Pumps

A pump moves a liquid. This guide, kept at [the library](https://example.org/pumps), tells the two kinds that are in \
daily use apart, and says how to start them with `pump.start()` when they have been dry.

## Kinds

- Gear pump, for thick liquids such as oil
- Vane pump, for thin liquids
  - sliding vanes inside

Flow of the kinds

| Name | Litres per minute |
| --- | --- |
| Gear | 10 |
| Vane | 25 |

## Starting

1. Open the inlet valve completely
2. Start the motor of the pump

```python
def start(pump):
    pump.prime()

    return pump.start()
```"""


@dataclass(frozen=True, slots=True)
class Page:
    """An HTML document, the text it holds, and whether menus are left out of it."""

    html: str
    text: str
    is_site: bool = False


PAGES = {
    "scenario 7": Page(SCENARIO_7, "# Test Document\n\nThis is a paragraph with bold text."),
    "a page of a web site": Page(_SITE, _SITE_TEXT, is_site=True),
    "no body": Page("<h2>Notes</h2><p>First<p>Second", "## Notes\n\nFirst\n\nSecond"),
    "no tags": Page("Just text &amp; an entity", "Just text & an entity"),
    "a title only above the text": Page("<title>Report</title><p>All is well.</p>", "# Report\n\nAll is well."),
    "a head without its end": Page("<head><title>T</title><body><h1>A</h1><p>b</p>", "# A\n\nb"),
    "an address": Page("https://example.org/page.html", "https://example.org/page.html"),
    "a feed": Page('<?xml version="1.0"?><rss><item><description>News</description></item></rss>', "News"),
    "entities": Page("<p>Caf&eacute; &#x1F600; 5 &lt; 6 &nbsp;&copy;</p>", "Café 😀 5 < 6 ©"),
    "line breaks": Page("<p>one<br>two<br/>\n three</p>", "one\ntwo\nthree"),
    "spanning cells": Page(
        "<table><tr><th>Year<th>Q1<th>Q2<tr><td rowspan=2>2025<td colspan=2>closed<tr><td>7<td>8</table>",
        "| Year | Q1 | Q2 |\n| --- | --- | --- |\n| 2025 | closed | closed |\n| 2025 | 7 | 8 |",
    ),
    "pipes and breaks in cells": Page(
        "<table><tr><th>a|b</th></tr><tr><td>x<br>y</td></tr><tr><td><ul><li>p</li><li>q</li></ul></td></tr></table>",
        "| a\\|b |\n| --- |\n| x<br>y |\n| - p<br>- q |",
    ),
    "a table that lays out the page": Page(
        "<table><tr><td><h1>Left</h1></td><td><table><tr><td>k</td><td>v</td></tr></table></td></tr></table>",
        "# Left\n\n| k | v |\n| --- | --- |",
    ),
    "numbered and nested lists": Page(
        "<ol start=3><li>three<ul><li>inner</ul><li>four</ol>", "3. three\n  - inner\n4. four"
    ),
    "unclosed tags": Page("<ul><li>a<li>b</ul><p>c<div>d", "- a\n- b\n\nc\n\nd"),
    "hidden parts": Page(
        "<p>seen</p><p hidden>no</p><div style='display: none'>no</div><noscript>no</noscript><!-- no -->"
        "<template>no</template><svg><title>no</title></svg>",
        "seen",
    ),
    "pictures": Page('<p>See <img src="a.png" alt="a red pump"> here.</p>', "See [image: a red pump] here."),
    "links": Page(
        '<p><a href="https://example.org/a">A</a> <a href="#top">up</a> <a href="javascript:alert(1)">run</a></p>',
        "[A](https://example.org/a) up run",
    ),
    "code with a fence in it": Page("<pre>a\n```\n\n  b</pre>", "````\na\n```\n\n  b\n````"),
    "a menu that swallows the page": Page("<nav><p>All of it is a menu.</p>", "All of it is a menu."),
    "nothing but menus around little": Page(
        "<nav><a href='/'>Home</a></nav><p>Short.</p><footer>Imprint</footer>", "Short.", is_site=True
    ),
}
