"""The agent as docker-compose.yml runs it, entered from another network namespace in each identity mode."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from task.llm.scripted import says
from tests.support.agent import agent_process
from tests.support.compose import FILLED, container_environment
from tests.support.core import local_core
from tests.support.http_api import MODEL, key_of, said
from tests.support.namespace import Call, Namespace, second_network
from tests.support.ports import free_port
from tests.support.upstream import openai_upstream

pytestmark = [pytest.mark.system, pytest.mark.root]
COMPOSED = container_environment("agent", FILLED)["AGENT_HTTP__MODE"]
MODES = ["open", "keys", "dial"]
JSON = {"Content-Type": "application/json"}
QUESTION = {"messages": [said("Hi")]}
GUARDED: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "/v1/models", None),
    ("POST", "/v1/chat/completions", QUESTION),
    ("POST", "/chat", QUESTION),
    ("POST", "/session/start", {}),
    ("GET", "/sessions", None),
    ("GET", "/traces", None),
]


@dataclass(frozen=True, slots=True)
class Entered:
    """The agent as the other network sees it; `keys` are the one of Core's project and one that the agent made."""

    network: Namespace
    url: str
    project_key: str
    own_key: str

    async def guarded(self, key: str | None) -> list[tuple[int, Any]]:
        headers = {**JSON, **({"Authorization": f"Bearer {key}"} if key else {})}
        calls: list[Call] = [(method, f"{self.url}{path}", headers, body) for method, path, body in GUARDED]
        return [(status, json.loads(body)) for status, body in await self.network.replies(calls)]

    async def status(self, method: str, path: str, body: Any = None, **headers: str) -> int:
        return (await self.network.replies([(method, f"{self.url}{path}", {**JSON, **headers}, body)]))[0][0]


@asynccontextmanager
async def _entered(tmp_path: Path, mode: str) -> AsyncGenerator[Entered]:
    port = free_port()
    async with openai_upstream(then=says("Hello.")) as upstream, second_network() as network:
        model = {"type": "chat", "endpoint": f"{upstream.endpoint}/openai/deployments/{MODEL}/chat/completions"}
        config = {"models": {MODEL: model}, "keys": {"key-one": {"project": "ONE", "role": "default"}}}
        async with local_core(config, tmp_path) as core:
            own_key = await key_of("ann", tmp_path)
            variables = {
                "AGENT_HOST": "0.0.0.0",
                "AGENT_HTTP__MODE": mode,
                "AGENT_DATA_DIR": str(tmp_path / "agent"),
                "DIAL_ENDPOINT": core.url,
                "DIAL_API_KEY": "key-one",
                "DEPLOYMENT_NAME": MODEL,
            }
            async with agent_process(tmp_path / "home", port, variables):
                yield Entered(network, f"http://{network.gateway}:{port}", "key-one", own_key)


async def test_with_the_mode_of_docker_compose_a_person_gets_in_with_the_key_of_the_env_file(tmp_path: Path) -> None:
    async with _entered(tmp_path, COMPOSED) as agent:
        assert await agent.status("GET", "/") == 200
        assert [status for status, _ in await agent.guarded(agent.project_key)] == [200] * len(GUARDED)


@pytest.mark.parametrize("mode", MODES)
async def test_core_reaches_the_agent_in_every_mode_and_probes_answer(mode: str, tmp_path: Path) -> None:
    async with _entered(tmp_path, mode) as agent:
        path = "/openai/deployments/general-purpose-agent/chat/completions"
        assert await agent.status("POST", path, QUESTION, **{"Api-Key": agent.project_key}) == 200
        assert await agent.status("GET", "/health") == 200


@pytest.mark.fault(
    "request: a caller from another network, without a key, with another mode's key, or in the mode open"
)
async def test_in_the_mode_open_another_network_is_refused_with_what_an_operator_can_choose(tmp_path: Path) -> None:
    async with _entered(tmp_path, "open") as agent:
        assert await agent.status("GET", "/") == 403
        for status, body in await agent.guarded(agent.project_key):
            assert (status, body["error"]["code"]) == (403, "not_local")
            for part in ("this machine only", "AGENT_HTTP__MODE=keys", "dial"):
                assert part in body["error"]["message"]


@pytest.mark.fault(
    "request: a caller from another network, without a key, with another mode's key, or in the mode open"
)
@pytest.mark.parametrize(
    ("mode", "right", "wrong"),
    [
        ("keys", lambda agent: agent.own_key, lambda agent: agent.project_key),
        ("dial", lambda agent: agent.project_key, lambda agent: agent.own_key),
    ],
)
async def test_another_network_gets_in_with_the_key_of_the_mode_and_with_no_other(
    mode: str, right: Callable[[Entered], str], wrong: Callable[[Entered], str], tmp_path: Path
) -> None:
    async with _entered(tmp_path, mode) as agent:
        assert [status for status, _ in await agent.guarded(right(agent))] == [200] * len(GUARDED)
        for key in (None, wrong(agent)):
            refused = await agent.guarded(key)
            assert [status for status, _ in refused] == [401] * len(GUARDED)
            assert all("key" in body["error"]["message"] for _, body in refused)
