"""README and documentation as somebody follows them: every block runs, page by page, and prints what is stated."""

import re
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from task.llm.scripted import Reply, says, wants
from tests.support.coding import plan
from tests.support.document_turns import EXTRACT, attached_urls
from tests.support.mcp_processes import search_server
from tests.support.pages import as_stated, following, runnable
from tests.support.search_site import search_site
from tests.support.up import ROOT
from tests.support.upstream import Received, openai_upstream

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LISTED = tomllib.loads((ROOT / "tests" / "documentation.toml").read_text(encoding="utf-8"))["block"]
ELSEWHERE = {(row["page"], row["first"]) for row in LISTED}
BLOCKS = [block for page in PAGES for block in runnable(page)]
RUN = [block for block in BLOCKS if (block.page, block.name) not in ELSEWHERE]
BROKEN = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n",
}
LAMP = '''
from task.console.teps import ToolHandlerInterface

class Lamp(ToolHandlerInterface):
    """Switch the lamp."""
    parameters = {"type": "object", "properties": {}}

    def execute(self, parameters):
        return {"on": True}
'''
ASKS = """
def ask_the_model(messages, tools):
    calls = [{"id": "1", "type": "function", "function": {"name": "stock", "arguments": '{"article": "A1"}'}}]
    return {"role": "assistant", "content": None, "tool_calls": calls}

messages = []
"""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a page takes for granted: files, an environment, commands before the first block, names in its programs."""

    files: Mapping[str, str] = field(default_factory=dict[str, str])
    replaced: Mapping[str, str] = field(default_factory=dict[str, str])
    before: str = ""
    prelude: str = ""


MODEL = "export OPENAI_BASE_URL=UPSTREAM OPENAI_API_KEY=sk-test DEPLOYMENT_NAME=gpt-4o"
BY_OPENAI = f"{MODEL} AGENT_BACKEND=openai PLANNER_MODEL=openai:gpt-4o CODER_MODEL=openai:gpt-4o"
CONNECTED = {"OPENAI_API_KEY=…": "OPENAI_BASE_URL=UPSTREAM OPENAI_API_KEY=sk-test"}
ASKED = """\
curl -sS localhost:5030/v1/chat/completions -H 'Content-Type: application/json' \
-d '{"messages": [{"role": "user", "content": "What is 25*47?"}], "experiment": "greeting/short"}'"""
MAKER = (
    "export DIAL=http://localhost:8080 KEY=$DIAL_API_KEY; "
    'BUCKET=$(curl -sS $DIAL/v1/bucket -H "Api-Key: $KEY" | grep -o \'[^"]*\' | tail -2 | head -1); export BUCKET'
)
SCENES = {
    "README.md": Scene(replaced={**CONNECTED, "source .venv/bin/activate": "true"}, before=MODEL),
    "docs/coding.md": Scene(BROKEN, before=BY_OPENAI),
    "docs/console.md": Scene(
        {"config.yaml": "llm:\n  provider: openai\n"}, before=f'{BY_OPENAI}\ndial-agent chat --json -p "Hello"'
    ),
    "docs/context.md": Scene(
        {"FRAMEWORK_CONTEXT.md": "## Standards\nNever round money.\ncoding_guide: @coding.md\n", "coding.md": "Tabs."},
        prelude="from types import SimpleNamespace\noutcome = SimpleNamespace(added=[])",
    ),
    "docs/dial.md": Scene(before=f"{MODEL} DIAL_API_KEY=a-key-of-16-letters\nmake run\n{MAKER}"),
    "docs/http-api.md": Scene(before=f"{MODEL}\nmake run"),
    "docs/interpreter.md": Scene(
        replaced={"AGENT_MCP_TOKEN=…": "AGENT_MCP_TOKEN=sixteen-characters", "/srv/job": "FOLDER/job"},
        before="mkdir job",
    ),
    "docs/mcp.md": Scene(replaced={"http://localhost:8051/mcp": "SEARCH"}),
    "docs/operations.md": Scene(before=f'{BY_OPENAI}\ndial-agent chat -p "What is 25*47?"'),
    "docs/performance.md": Scene(
        prelude="from tests.benchmarks.figures import Figure, report\npages_per_second = 1000"
    ),
    "docs/search.md": Scene(
        replaced={
            "AGENT_MCP_TOKEN=…": "AGENT_MCP_TOKEN=sixteen-characters",
            "mcp_servers.duckduckgo": "mcp_servers.duckduckgo --port 8051",
        }
    ),
    "docs/tools.md": Scene({"a.txt": "A text.\n"}, prelude=LAMP + ASKS),
    "docs/observability.md": Scene(before="\n".join([MODEL, "make run", ASKED, ASKED])),
    "docs/upgrading.md": Scene(before="dial-agent keys create ann\ndial-agent store backup before.db"),
    "docs/tutorial.md": Scene(replaced={**CONNECTED, "source .venv/bin/activate": "true"}),
}


def model(received: Received) -> Reply:
    """What the model of all pages answers: it calls the tool that fits the question and reads the result."""
    last = received.last
    text = str(last["content"])
    if last["role"] == "tool":
        return _reads(text)
    if "top sale" in text:
        return wants(EXTRACT, file_url=attached_urls(received)[0])
    if "with tax" in text:
        return wants("vat", net=100)
    if "calc.py" in text and "fs_edit" in received.tools:
        return wants("fs_edit", path="calc.py", old_text="a - b", new_text="a + b")
    if "calc.py" in text:
        return plan(prompt="Correct add in calc.py.", tests=["python -m pytest -q test_calc.py"])
    return says("25*47 makes 1175.")


def _reads(result: str) -> Reply:
    if "| 2025-10-05 | A | 1700 |" in result:
        return says("The top sale of category A is 1700, on 2025-10-05.")
    return says(f"With tax it costs {result}.") if re.fullmatch(r"[\d.]+", result) else says("Done.")


@pytest.mark.parametrize("page", dict.fromkeys(block.page for block in RUN))
async def test_a_page_can_be_followed(page: str, tmp_path: Path) -> None:
    scene, blocks = SCENES.get(page, Scene()), [block for block in RUN if block.page == page]
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in scene.files.items():
        (folder / name).write_text(text, encoding="utf-8")
    async with openai_upstream(then=model) as upstream, search_site() as site:
        with search_server(site.url) as search:
            here = {"UPSTREAM": upstream.url, "SEARCH": search.url, "FOLDER": str(folder)}
            async with following(tmp_path, blocks, {**scene.replaced, **here}, scene.prelude) as follower:
                for line in scene.before.splitlines():
                    await follower.run("sh", line)
                printed = [(block, await follower.run(block.language, block.text)) for block in blocks]
    for block, output in printed:
        assert block.output is None or as_stated(output, block.output), (block.name, output)


FILLED = """\
DIAL_API_KEY=key-of-the-file
OPENAI_API_KEY=sk-test
OPENAI_BASE_URL=UPSTREAM
DEPLOYMENT_NAME=gpt-4o
AGENT_MCP_TOKEN=sixteen-characters
"""


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
async def test_a_page_can_be_followed_from_a_clone_with_a_filled_env(page: str, tmp_path: Path) -> None:
    scene, blocks, clone = (
        SCENES.get(page, Scene()),
        [block for block in RUN if block.page == page],
        tmp_path / "project",
    )
    for name in ("task", "mcp_servers", "core_config"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", clone)
    for name in (".venv-kernel", ".embedding"):
        (clone / name).symlink_to(ROOT / name)
    for name, text in scene.files.items():
        (clone / name).write_text(text, encoding="utf-8")
    replaced = {**scene.replaced, "OPENAI_API_KEY=… ": "", "OPENAI_BASE_URL=UPSTREAM OPENAI_API_KEY=sk-test": ""}
    replaced["$(cat ~/.local/share/dial-agent/core.key)"] = "key-of-the-file"
    async with openai_upstream(then=model) as upstream:
        (clone / ".env").write_text(FILLED.replace("UPSTREAM", upstream.url))
        async with following(tmp_path, blocks, {**replaced, "UPSTREAM": upstream.url}, scene.prelude) as follower:
            await follower.run("sh", "export PYTHONPATH=$PWD")
            # The readers of documents do not see a module's path that is in the environment: answers are not compared.
            printed = [await follower.run(block.language, block.text) for block in blocks]
            beside = await follower.run(
                "sh", "mkdir -p below; cd below; unset AGENT_TOOL_PATHS; dial-agent doctor --json"
            )
    assert all(output for block, output in zip(blocks, printed, strict=True) if block.output is not None)
    assert "OPENAI_BASE_URL is set" in beside, "the clone's own file counts below it, too"


def test_every_block_that_is_not_run_here_exists_and_has_a_reason_or_a_test() -> None:
    assert not ELSEWHERE - {(block.page, block.name) for block in BLOCKS}
    assert all(("reason" in row) != ("test" in row) for row in LISTED)
    assert len(ELSEWHERE) == len(LISTED) == 16


def test_what_runs_elsewhere_is_in_the_test_that_is_named() -> None:
    for row in LISTED:
        file, _, name = row.get("test", "::").partition("::")
        assert not name or f"def {name}(" in (ROOT / file).read_text(encoding="utf-8")
