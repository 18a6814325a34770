"""A coding run as a person starts it: a project's folder, the command in a process, Ollama as the model."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from task.llm.scripted import Reply, says
from task.tools.workspace.launcher import sandbox_here
from tests.support.ollama import OllamaPeer, Scripted, ollama_peer
from tests.support.ollama_peer import MODEL
from tests.support.terminal import Terminal, terminal
from tests.support.up import Finished, dial_agent, environment

PLANNER, CODER = "planner-model", "coder-model"


def plan(*steps: str, prompt: str = "Do it.", tests: Sequence[str] = (), writes: bool = True) -> Reply:
    """A planner's answer."""
    made = {"plan": list(steps or ("Read.", "Write.")), "coder_prompt": prompt, "tests": list(tests), "writes": writes}
    return says(json.dumps(made))


def tree(folder: Path) -> str:
    """A digest of all that is in a folder: names, kinds, modes, contents."""
    digest = sha256()
    for path in sorted(folder.rglob("*")):
        state = path.lstat()
        content = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        digest.update(repr((str(path.relative_to(folder)), state.st_mode, content)).encode())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class Project:
    """A project's folder in a home of its own, and the Ollama that plans and codes."""

    home: Path
    folder: Path
    ollama: OllamaPeer

    async def run(self, task: str = "Do the task.", *options: str, **environ: str) -> Finished:
        """`dial-agent run` in the project's folder."""
        given = [task] if task else []
        folder = ("--workspace", str(self.folder))
        return await self.agent("run", *given, *folder, *self.sandbox, *options, cwd=None, **environ)

    async def agent(self, *arguments: str, cwd: Path | None = None, **environ: str) -> Finished:
        """Any command, with the settings of this project."""
        return await dial_agent(self.home, *arguments, cwd=cwd, **{**self.environ, **environ})

    @asynccontextmanager
    async def started(self, *arguments: str, **environ: str) -> AsyncGenerator[asyncio.subprocess.Process]:
        """A command that the test ends; its output is a pipe."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "task", *arguments,
            cwd=self.home, env=environment(self.home, **{**self.environ, **environ}),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    @property
    def sandbox(self) -> Sequence[str]:
        """The option of a machine without a sandbox, which still shows everything else."""
        return () if sandbox_here().missing is None else ("--unsafe-no-sandbox",)

    @property
    def environ(self) -> dict[str, str]:
        models = {"PLANNER_MODEL": PLANNER, "CODER_MODEL": CODER}
        return {"TURBO_HOST": self.ollama.url, "OLLAMA_LOCAL": self.ollama.url, **models}

    @asynccontextmanager
    async def at_a_terminal(self, *arguments: str) -> AsyncGenerator[Terminal]:
        """A command at a terminal."""
        command = [sys.executable, "-m", "task", *arguments]
        async with terminal(command, environment(self.home, **self.environ), self.home) as window:
            yield window

    async def requests(self, model: str) -> list[dict[str, Any]]:
        """The bodies of the requests to a model."""
        return [body for body in (await self.ollama.seen()).bodies if body["model"].removesuffix(":latest") == model]


@asynccontextmanager
async def project(
    tmp_path: Path, *answers: Scripted, files: Mapping[str, str | bytes] | None = None
) -> AsyncGenerator[Project]:
    """A project with these files; the answers are the planner's and the coder's in the order of their requests."""
    folder = tmp_path / "project"
    folder.mkdir(parents=True)
    for name, content in (files or {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    home = tmp_path / "home"
    home.mkdir()
    models: Mapping[str, dict[str, Any] | None] = {f"{name}:latest": MODEL for name in (PLANNER, CODER)}
    async with ollama_peer(*answers, models=models) as peer:
        yield Project(home, folder, peer)
