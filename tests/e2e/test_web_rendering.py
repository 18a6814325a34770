"""Formulas, code, diagrams and documents on the page: shown as they are meant, harmless, and without holding it up."""

import io
from pathlib import Path

import pytest
from PIL import Image
from playwright.async_api import expect
from reportlab.lib.styles import getSampleStyleSheet
from reportlab.platypus import Flowable, PageBreak, Paragraph, SimpleDocTemplate

from task.llm.scripted import Reply, says, wants
from tests.support.web import PAGE_MARKS, Person, person

pytestmark = PAGE_MARKS

TEXT = r"""The identity $e^{i\pi} + 1 = 0$ costs $5 and $10; this is broken: $\frac{a$.

\[
\int_0^\infty e^{-x^2}\,dx
= \frac{\sqrt{\pi}}{2}
\]

```python
def half(n: int) -> float:
    return n / 2  # slow
```

```mermaid
flowchart LR
  A[Question] --> B[Answer]
```

```mermaid
no diagram
```

- [x] Read the file
- [ ] Draw it
"""


@pytest.mark.fault("web page: a formula or a diagram with an error")
async def test_formulas_code_diagrams_and_tasks_are_shown(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(says(TEXT), tmp_path=tmp_path, size=size) as p:
        assert await p.page.evaluate(VENDORED) == []
        await p.asks("Is $e^{i\\pi} + 1$ zero?\nIt is in:\n```py\nreturn 1\n```")
        async for _ in p.before_and_after_a_reload():
            await expect(p.page.locator(".question .katex")).to_have_count(1)
            await expect(p.page.locator(".question .hljs-keyword")).to_have_text("return")
            await expect(p.prose.locator(".katex")).to_have_count(2)
            await expect(p.prose.locator(".math.display .katex-display")).to_be_visible()
            await expect(p.prose.locator("math annotation").first).to_have_text(r"e^{i\pi} + 1 = 0")
            await expect(p.prose.locator("code.not-set")).to_have_text(r"\frac{a")
            await expect(p.prose).to_contain_text("costs $5 and $10")
            await expect(p.prose.locator(".hljs-keyword")).to_have_text(["def", "return"])
            await expect(p.prose.get_by_role("checkbox")).to_have_count(2)
            await expect(p.prose.get_by_role("checkbox", name="Done")).to_be_checked()
            await shows_the_diagram(p)
            copied = await p.prose.locator("p").first.evaluate(COPIED)
            assert r"identity $e^{i\pi} + 1 = 0$ costs $5" in copied
            assert await p.fits()
        assert await p.finds_serious() == []


async def shows_the_diagram(p: Person) -> None:
    image = p.prose.locator(".diagram img")
    await expect(image).to_be_visible()
    assert await image.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
    await p.button("Source").click()
    await expect(p.prose.get_by_text("A[Question] --> B[Answer]")).to_be_visible()
    await p.button("Source").click()
    await expect(image).to_be_visible()
    await expect(p.prose.get_by_text("no diagram")).to_be_visible()
    await expect(p.prose.get_by_text("This diagram cannot be drawn.")).to_be_visible()


VENDORED = (
    "performance.getEntriesByType('resource').map((entry) => entry.name).filter((name) => name.includes('vendor'))"
)
COPIED = """(paragraph) => {
    getSelection().selectAllChildren(paragraph);
    const event = new ClipboardEvent("copy", { bubbles: true, cancelable: true, clipboardData: new DataTransfer() });
    paragraph.dispatchEvent(event);
    getSelection().removeAllRanges();
    return event.clipboardData.getData("text/plain");
}"""


QUOTE = "Tokyo is the largest city of the world, and thirty-seven million people live there."


def book() -> bytes:
    """Eight pages, the fifth of which has the quotation, broken over lines."""
    styles, file = getSampleStyleSheet(), io.BytesIO()
    story: list[Flowable] = []
    for number in range(1, 9):
        story += [
            Paragraph(f"Chapter {number}", styles["Heading1"]),
            Paragraph("Other words. " * 90, styles["BodyText"]),
        ]
        story += [Paragraph(f"The first sentence. {QUOTE} The last.", styles["BodyText"])] if number == 5 else []
        story.append(PageBreak())
    SimpleDocTemplate(file).build(story)
    return file.getvalue()


TEXTS = "Intro.\n\n" * 300 + QUOTE.replace("city", "*city*\n").replace("-", "-\n")
PAGE_OF_A_SITE = f"""<script>window.harmed = 1</script><p>Cities</p><img src="https://pictures.example/a.png">
<p onclick="harm()">{QUOTE.replace("city", "<b>city</b>")}</p><iframe src="https://frames.example"></iframe>"""
FILES = {
    "cities.pdf": ("application/pdf", book()),
    "cities.md": ("text/markdown", TEXTS.encode()),
    "cities.html": ("text/html", PAGE_OF_A_SITE.encode()),
    "<img src=x onerror=harm()>.pdf": ("application/pdf", b"no PDF"),
}


@pytest.mark.fault("web page: a cited file that is gone, is no PDF, or holds scripts")
async def test_cited_passages_open_marked_in_their_documents(tmp_path: Path, size: tuple[int, int]) -> None:
    script: list[Reply] = []
    items = [lambda _, place=place: script[place] for place in range(len(FILES) + 2)]
    async with person(*items, tmp_path=tmp_path, size=size) as p:
        urls = [await p.stores(name, kind, content) for name, (kind, content) in FILES.items()]
        titles = [f"[{number}] {name}, p. 4" for number, name in enumerate([*FILES, "gone.pdf"], 1)]
        addresses = [*urls, "files/somewhere/gone.pdf"]
        script += [
            wants("cite", url=url, title=title, quote=QUOTE) for url, title in zip(addresses, titles, strict=True)
        ]
        script.append(says(f"Tokyo [1], [2], [3], [4] and [5]. See [the book]({urls[0]}#page=1) and {urls[1]}."))
        await p.asks("Cite")
        viewer = p.page.get_by_role("dialog")
        for number in range(3):
            await p.cited.nth(number).press("Enter")
            marks = viewer.locator("mark")
            await expect(marks.first).to_be_in_viewport()
            assert letters("".join(await marks.all_text_contents())) == letters(QUOTE)
            await expect(viewer.locator("blockquote")).to_have_text(QUOTE)
            assert await p.finds_serious() == []
            await p.cited.nth(number).evaluate(DRAWN_AGAIN)
            await p.page.keyboard.press("Escape")
            await expect(viewer).to_have_count(0)
            await expect(p.cited.nth(number)).to_be_focused()
        for number in (3, 4):
            await p.cited.nth(number).click()
            await expect(viewer.get_by_role("alert")).to_be_visible()
            await expect(viewer.locator("blockquote")).to_have_text(QUOTE)
            await viewer.get_by_role("button", name="Close").click()
        await p.prose.get_by_role("button", name="the book").click()
        await expect(viewer.locator(".pdf-page canvas").first).to_be_visible()
        await viewer.get_by_role("button", name="Close").click()
        await p.prose.get_by_role("button", name="cities.md", exact=True).click()
        await expect(viewer.locator("pre")).to_contain_text("Intro.")
        assert await p.fits()
        assert await p.page.evaluate("window.harmed") is None
        assert await p.page.evaluate(OPENED_TOO_LATE, urls[0]) == [None, 0]


# What an answer does that goes on below a number whose document is open: the number is another element then.
DRAWN_AGAIN = """async (number) => {
    const { place } = number.closest(".prose");
    const text = place.text;
    place.begin();
    place.show(text);
    while (number.isConnected || !document.querySelector(".cite")) await new Promise(requestAnimationFrame);
}"""

# A PDF whose reading ends after another document has been opened does not take its place.
OPENED_TOO_LATE = """async (url) => {
    const [{ content }, { showPdf }] = await Promise.all([import("/static/api.js"), import("/static/pdf.js")]);
    const place = document.createElement("div");
    const bytes = new Uint8Array(await (await content(url)).arrayBuffer());
    return [await showPdf(place, bytes, { isWanted: () => false }), place.childElementCount];
}"""


def letters(text: str) -> str:
    return "".join(filter(str.isalnum, text)).lower()


async def test_beside_a_scanned_document_the_conversation_goes_on(tmp_path: Path) -> None:
    script: list[Reply] = []
    items = [lambda _, place=place: script[place] for place in range(3)]
    async with person(*items, tmp_path=tmp_path) as p:
        url = await p.stores("scan.pdf", "application/pdf", scan())
        script += [wants("cite", url=url, title="[1] scan.pdf", quote=QUOTE), says("Tokyo [1]."), says("More.")]
        await p.asks("Cite")
        await p.cited.first.click()
        canvas = p.page.locator(".pdf-page canvas")
        await expect(canvas).to_be_visible()
        assert await canvas.evaluate(DARKNESS) == [0, 255]
        await p.asks("And now?")
        await p.sees("More.")
        await expect(p.page.get_by_role("dialog")).to_contain_text(QUOTE)
        await p.starts_a_new_conversation()
        await expect(p.page.get_by_role("dialog")).to_have_count(0)


def scan() -> bytes:
    """A page that is a fax of a black field beside a white one."""
    image, file = Image.new("1", (400, 400), 1), io.BytesIO()
    image.paste(0, (0, 0, 200, 400))
    image.save(file, "PDF")
    assert b"CCITTFaxDecode" in file.getvalue()
    return file.getvalue()


DARKNESS = """(canvas) => [0.25, 0.75].map((part) =>
    canvas.getContext("2d").getImageData(canvas.width * part, canvas.height / 2, 1, 1).data[0])"""


HOSTILE = r"""$\href{javascript:window.harmed=1}{a}$ $\url{javascript:window.harmed=2}$ $\def\a{\a\a}\a$
$\includegraphics{https://pictures.example/x.png}$ $\htmlStyle{background:url(https://pictures.example/y.png)}{x}$
$\htmlData{a=1}{x}$ $\text{<img src=x onerror=window.harmed=3>}$ $\rule{9999em}{9999em}$ $x`$
$\raisebox{-100000em}{y}$

```mermaid
flowchart LR
  A["<img src=x onerror=window.harmed=4>"] --> B["<script>window.harmed=5</script><b>bold</b>"]
  click A "javascript:window.harmed=6" "tip"
  click B call harm()
  click B href "https://links.example/x"
```

```mermaid
%%{init: {"securityLevel": "loose", "themeCSS": "* { background: url(https://pictures.example/c.png) }"}}%%
flowchart LR
  C@{ img: "https://pictures.example/x.png", label: "pic", w: 60, h: 60 } --> D
  style D fill:url(https://pictures.example/z.png)
```

```mermaid
sequenceDiagram
  participant A
  links A: {"Board": "javascript:window.harmed=7", "Other": "https://links.example"}
  A->>A: <iframe src="https://frames.example"></iframe>
```

```html onload=x
<script>window.harmed=8</script><img src=x onerror=window.harmed=9>
```

[file](files/b/"onmouseover=harm()) The end.
"""


@pytest.mark.fault("web page: scripts, links and foreign pictures in formulas, diagrams and code")
async def test_hostile_formulas_diagrams_and_code_do_nothing(tmp_path: Path) -> None:
    async with person(says(HOSTILE), tmp_path=tmp_path) as p:
        await p.asks("Show me")
        await expect(p.prose.locator(".hljs-tag").first).to_be_visible()
        drawn = p.prose.locator(".diagram img, .not-drawn")
        await expect(drawn).to_have_count(3)
        await expect(p.prose.locator(".katex, .not-set").first).to_be_visible()
        for image in await p.prose.locator(".diagram").all():
            await image.click()
        for hostile in ("script", "iframe", "object", "[onerror]", "img:not([src^='blob:'])", "a[href^='javascript']"):
            await expect(p.prose.locator(hostile)).to_have_count(0)
        widths = await p.prose.locator(".katex").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect().width)"
        )
        assert max(widths) < 2000
        await expect(p.prose.locator(".not-set", has_text="raisebox")).to_be_visible()
        assert await p.page.evaluate("window.harmed") is None
        assert p.visit.asked == {"127.0.0.1"}


STATES = "".join(f"s{place % 331}-->s{place * 13 % 337}\n" for place in range(1_500))  # minutes of work anywhere
LONGEST_PAUSE = """() => {
    let last = performance.now();
    window.longest = 0;
    setInterval(() => {
        window.longest = Math.max(window.longest, performance.now() - last);
        last = performance.now();
    }, 20);
}"""


@pytest.mark.fault("web page: a diagram that takes long to draw")
async def test_a_diagram_that_takes_long_is_shown_as_code_and_does_not_hold_up_the_page(tmp_path: Path) -> None:
    text = f"```mermaid\nstateDiagram-v2\n{STATES}```\n\n```mermaid\nflowchart LR\n  A --> B\n```\n"
    async with person(says("Hello."), says(text), tmp_path=tmp_path) as p:
        await p.asks("Hi")
        await p.page.evaluate(LONGEST_PAUSE)
        await p.asks("Draw it")
        await expect(p.prose.get_by_text("This diagram cannot be drawn.")).to_be_visible()
        await expect(p.prose.get_by_text("s0-->s0")).to_be_visible()
        await expect(p.prose.locator(".diagram img")).to_be_visible()  # the one behind it
        assert await p.page.evaluate("window.longest") < 1_000  # far below the time that drawing may take


async def test_a_chart_is_saved_as_a_picture_and_as_a_table(tmp_path: Path, size: tuple[int, int]) -> None:
    async with person(wants("show_things", what="cities"), says("Shown."), tmp_path=tmp_path, size=size) as p:
        await p.asks("Show me")
        await expect(p.answers.last.locator(".chart .main-svg").first).to_be_visible()
        saved: dict[str, bytes] = {}
        for kind in ("PNG", "SVG", "CSV"):
            async with p.page.expect_download() as download:
                await p.answers.last.get_by_role("button", name=f"Save Largest cities as {kind}").first.click()
            file = await download.value
            assert file.suggested_filename == f"Largest cities.{kind.lower()}"
            saved[kind] = Path(await file.path()).read_bytes()
        assert saved["PNG"].startswith(b"\x89PNG")
        assert b"<svg" in saved["SVG"][:200]
        assert saved["CSV"].decode("utf-8-sig").splitlines() == [
            "Millions x,Millions y",
            "Tokyo,37",
            "Delhi,33",
            "Shanghai,29",
        ]
        assert await p.fits()
