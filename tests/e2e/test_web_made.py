"""What Python has made is shown in the page: plots, charts and tables of a real kernel, with nobody's key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from task.llm.scripted import says, wants
from tests.support.interpreter import TOKEN, running_interpreter
from tests.support.web import person

pytestmark = [
    pytest.mark.system,
    pytest.mark.timeout(120),
    # Playwright talks with its driver through a subprocess that ends after the test's own loop has been left.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CODE = """
import matplotlib.pyplot as plt, pandas as pd
plt.plot([1, 3, 2]); plt.show()
pd.DataFrame({"town": ["Tokyo"], "people": [37]}).to_csv("towns.csv", index=False)
figure = {"data": [{"type": "bar", "x": ["a", "b"], "y": [1, 2]}], "layout": {}}
display({"application/vnd.plotly.v1+json": figure}, raw=True)
"""


async def test_what_code_makes_is_shown_also_after_a_reload(tmp_path: Path) -> None:
    script = (wants("execute_code", code=CODE), says("Here it is."))
    with running_interpreter(tmp_path / "interpreter", "--spares", "0") as server:
        settings: dict[str, Any] = {"pyinterpreter_mcp_url": server.url, "mcp_token": TOKEN}
        async with person(*script, tmp_path=tmp_path, **settings) as p:
            await p.asks("Plot it")
            for reloaded in (False, True):
                if reloaded:
                    await p.page.reload()
                answer = p.answers.last
                await expect(answer.locator(".picture img").last).to_be_visible()
                await expect(answer.locator(".chart .main-svg").last).to_be_visible()
                await expect(answer.get_by_role("cell", name="Tokyo").last).to_be_visible()
                await expect(answer.locator(".trouble")).to_have_count(0)
            width = await p.page.locator(".picture img").last.evaluate("image => image.naturalWidth")
    assert width > 100
