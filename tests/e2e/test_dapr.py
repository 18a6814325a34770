"""`dial-agent` with Dapr as its backend: doctor, local Core, coding runs, the whole product, and TLS."""

import datetime
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from task.cli.checks import Check
from task.cli.core import core_settings
from task.cli.doctor import results
from task.cli.model_choice import choose_model
from task.cli.run import coding_models
from task.coding.planner import get_plan_async
from task.console.configuration import ConfigurationManager
from task.llm.scripted import says, wants
from task.settings import Settings, load_settings
from tests.support.core import local_core
from tests.support.dapr import MODEL, dapr_process, scripted_peer
from tests.support.isolation import NO_OLLAMA
from tests.support.mcp_processes import ServerProcess
from tests.support.ports import free_port
from tests.support.up import dial_agent

CONFIG = {"keys": {"k": {"project": "P", "role": "default"}}, "roles": {"default": {"limits": {}}}}
PLAN = {"plan": ["Read it.", "Change it.", "Test it."], "coder_prompt": "Change it.", "tests": []}


@pytest.fixture(scope="module")
def process() -> Generator[tuple[ServerProcess, int]]:
    with dapr_process() as running:
        yield running


def settings(home: Path, address: str, **environ: str) -> Settings:
    given = {"HOME": str(home), "OLLAMA_LOCAL": NO_OLLAMA, "AGENT_BACKEND": "dapr", "DAPR_GRPC_ENDPOINT": address}
    return load_settings(environ={**given, **environ}, directory=home)


async def rows(home: Path, address: str, **environ: str) -> dict[str, Check]:
    return {row.name: row for row in await results(settings(home, address, **environ), "model", "dapr")}


# doctor


@pytest.mark.fault("console commands: a sidecar that cannot be used, at the start")
async def test_doctor_describes_the_sidecar_and_its_faults(process: tuple[ServerProcess, int], tmp_path: Path) -> None:
    async with scripted_peer(process) as peer:
        usable = await rows(tmp_path, peer.address)
        gone = await rows(tmp_path, peer.address, AGENT_DAPR__COMPONENT="gone")
        await peer.script(version="1.15.0")
        old = await rows(tmp_path, peer.address)
        await peer.script(components={}, version="1.18.3")
        empty = await rows(tmp_path, peer.address)
        await peer.script(token="right")
        foreign = await rows(tmp_path, peer.address, DAPR_API_TOKEN="wrong")
    away = await rows(tmp_path, f"127.0.0.1:{free_port()}")
    nowhere = await rows(tmp_path, "no/where")
    described = f"version 1.18.3 at {peer.address}; {MODEL}: conversation.openai"
    assert (usable["dapr"].state, usable["dapr"].found) == ("ok", described)
    assert usable["model"].found == f"{MODEL}, because AGENT_BACKEND asks for Dapr at {peer.address}"
    found = [row["dapr"] for row in (gone, old, empty, foreign, away, nowhere)]
    assert {(row.state, bool(row.fix)) for row in found} == {("bad", True)}
    words = (
        "no conversation component gone", "must be Dapr 1.16", "It has none", "refuses the token",
        "does not answer at", "is not an address",
    )  # fmt: skip
    assert [part in row.found for part, row in zip(words, found, strict=True)] == [True] * 6


# Local Core, coding runs, the framework's configuration


async def test_local_core_serves_the_component_as_a_model(process: tuple[ServerProcess, int], tmp_path: Path) -> None:
    async with scripted_peer(process, wants("calculator", expression="1+1")) as peer:
        chosen = settings(tmp_path, peer.address)
        model = core_settings(chosen, await choose_model(chosen, behind_core=True)).model
        async with local_core(CONFIG, tmp_path, model=model) as core, aiohttp.ClientSession() as session:
            url = f"{core.url}/openai/deployments/{MODEL}/chat/completions"
            body = {"messages": [{"role": "user", "content": "Hi"}]}
            async with session.post(url, json=body, headers=core.headers()) as response:
                answer: dict[str, Any] = await response.json()
            async with session.get(f"{core.url}/openai/models", headers=core.headers()) as response:
                names = [item["id"] for item in (await response.json())["data"]]
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "calculator"
    assert names == [MODEL]


async def test_a_component_plans_by_a_schema(
    process: tuple[ServerProcess, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    components = {"planner": "conversation.openai", "coder": "conversation.anthropic"}
    async with scripted_peer(process, says(json.dumps(PLAN)), components=components) as peer:
        given = {"DAPR_GRPC_ENDPOINT": peer.address, "PLANNER_MODEL": "dapr:planner", "CODER_MODEL": "dapr:coder"}
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        monkeypatch.chdir(tmp_path)
        plan = await get_plan_async("Do it.")
        models = await coding_models(load_settings(), "local")
        for model in models:
            await model.services.close()
        (body,) = (await peer.seen()).bodies
    assert plan.plan == PLAN["plan"]
    assert [model.label for model in models] == [f"planner (Dapr at {peer.address})", f"coder (Dapr at {peer.address})"]
    assert body["name"] == "planner"
    assert "matches this JSON Schema" in str(body["inputs"])


def test_the_frameworks_configuration_chooses_the_component(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("llm:\n  provider: dapr\n  dapr: {component: assistant, endpoint: 'sidecar:50001', api_key: t}\n")
    found = load_settings(file, environ={"HOME": str(tmp_path)}, directory=tmp_path)
    assert (found.backend, found.dapr.component, found.dapr_grpc_endpoint) == ("dapr", "assistant", "sidecar:50001")
    assert found.dapr_api_token is not None
    assert ConfigurationManager(str(file)).get_llm_provider() == "dapr"


# The whole product, and TLS


def certificate(folder: Path) -> tuple[Path, Path]:
    """A new certificate of this machine's own and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(made.public_bytes(pem))
    (folder / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    return folder / "cert.pem", folder / "key.pem"


@pytest.mark.system
async def test_an_endpoint_with_tls_is_called_with_it(tmp_path: Path) -> None:
    pair = certificate(tmp_path)
    with dapr_process(*map(str, pair)) as (_, port):
        environ = {"AGENT_BACKEND": "dapr", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(pair[0])}
        found: list[str] = []
        for query in ("?tls=true", ""):
            endpoint = f"localhost:{port}{query}"
            ended = await dial_agent(tmp_path, "doctor", "--json", DAPR_GRPC_ENDPOINT=endpoint, **environ)
            found += [row["state"] for row in json.loads(ended.out) if row["name"] == "dapr"]
    assert found == ["ok", "bad"]
