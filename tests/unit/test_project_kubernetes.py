"""The chart in `kubernetes/`: what its parts must have in common with one another and with the product."""

import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from scripts.settings_table import is_secret
from task.settings import PREFIX, Settings, load_settings
from task.settings.sources import settings_of
from task.tools.py_interpreter.interpreter_server import AFFINITY
from tests.support.chart import RELEASE, chart, named, values
from tests.support.compose import FILLED, ROOT, composed, image_builds
from tests.support.stores import sqlite_url
from tests.support.up import dial_agent

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
ALIASES = ("agent", "search", "interpreter")
AGENT = values()["agent"]
ROUTING: dict[str, Any] = AGENT["initContainers"][0]
JOB: dict[str, Any] = named("Job", "dial-agent-migration")["spec"]["template"]["spec"]
ENVOY: Any = yaml.safe_load(named("ConfigMap", "dial-agent-routing")["data"]["envoy.yaml"])
CONFINED = {
    "runAsUser": 1001, "runAsGroup": 1001, "runAsNonRoot": True, "privileged": False, "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
}  # fmt: skip
CLOSING_SECONDS = 10  # of the processes, after the answers have ended
SECRETS = {"AGENT_STATE_SECRET": "s" * 32, "AGENT_STORE__URL": "postgresql://agent:secret@postgres/agent",
           "AGENT_MCP_TOKEN": "t" * 32}  # fmt: skip


def test_the_chart_its_images_and_the_product_have_one_version() -> None:
    built = {composed(FILLED)["services"][name]["image"] for name in image_builds()}
    images = {f"{values()[alias]['image']['repository']}:{values()[alias]['image']['tag']}" for alias in ALIASES}
    assert {chart()["version"], chart()["appVersion"]} == {VERSION}
    assert images == built
    assert JOB["containers"][0]["image"].endswith(f"/dial-general-purpose-agent:{VERSION}")


def test_the_agents_environment_is_accepted_by_its_settings(tmp_path: Path) -> None:
    known = {setting.variable for setting in settings_of(Settings, PREFIX)} | {"HOME"}
    assert AGENT["env"].keys() <= known
    settings = load_settings(environ={**AGENT["env"], **SECRETS}, directory=tmp_path)
    assert (settings.port, settings.metrics.port) == tuple(AGENT["containerPorts"].values())
    assert (settings.http.mode, settings.store.migrate) == ("dial", False)


def test_values_hold_no_secrets_and_only_the_agent_gets_those_of_the_database() -> None:
    secret = {setting.variable for setting in settings_of(Settings, PREFIX) if is_secret(setting)}
    for alias in ALIASES:
        assert not secret & values()[alias].get("env", {}).keys()
        assert {each["name"] for each in values()[alias]["extraEnvVars"]} == {"AGENT_MCP_TOKEN"}
    assert [alias for alias in ALIASES if "extraEnvVarsSecret" in values()[alias]] == ["agent"]


def test_the_agent_finds_its_servers_by_names_that_they_accept() -> None:
    search, routed = (urlsplit(AGENT["env"][name]) for name in ("DDG_MCP_URL", "PYINTERPRETER_MCP_URL"))
    arguments = values()["search"]["args"]
    assert (
        search.hostname == values()["search"]["fullnameOverride"] == arguments[arguments.index("--allowed-hosts") + 1]
    )
    service = named("Service", "dial-agent-interpreters")
    port = service["spec"]["ports"][0]["port"]
    assert ENVOY["static_resources"]["listeners"][0]["address"]["socket_address"] == {
        "address": routed.hostname, "port_value": routed.port,
    }  # fmt: skip
    [endpoints] = ENVOY["static_resources"]["clusters"][0]["load_assignment"]["endpoints"]
    assert endpoints["lb_endpoints"][0]["endpoint"]["address"]["socket_address"] == {
        "address": f"{service['metadata']['name']}.{RELEASE['Namespace']}.svc.cluster.local", "port_value": port,
    }  # fmt: skip
    assert (service["spec"]["clusterIP"], service["spec"]["selector"]) == ("None", labels("interpreter"))
    assert port == values()["interpreter"]["containerPorts"]["http"]


def labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/instance": RELEASE["Name"]}


def peers(rules: list[dict[str, Any]], side: str) -> set[tuple[str, int]]:
    """Who is let in or out, by the name of its label or the place in `network` that has it, with each port."""
    known = {str([{"podSelector": {"matchLabels": labels(name)}}]): name for name in ALIASES}
    known |= {str(found): name for name, found in values()["network"].items()}
    return {(known[str(rule[side])], port["port"]) for rule in rules for port in rule["ports"]}


@pytest.mark.fault("compose: a pod that reaches what it does not need")
@pytest.mark.parametrize(
    ("name", "pods", "incoming", "outgoing"),
    [
        (
            "dial-agent", "agent", {("core", 5030), ("prometheus", 9464)},
            {
                ("dns", 53), ("core", 8080), ("postgresql", 5432), ("redis", 6379), ("interpreter", 8050),
                ("search", 8051),
            },
        ),
        ("dial-agent-interpreter", "interpreter", {("agent", 8050)}, set[tuple[str, int]]()),
        ("dial-agent-search", "search", {("agent", 8051)}, {("dns", 53), ("internet", 80), ("internet", 443)}),
        ("dial-agent-migration", "migration", set[tuple[str, int]](), {("dns", 53), ("postgresql", 5432)}),
    ],
)  # fmt: skip
def test_pods_reach_whom_they_need_and_nobody_else(
    name: str, pods: str, incoming: set[tuple[str, int]], outgoing: set[tuple[str, int]]
) -> None:
    policy = named("NetworkPolicy", name)["spec"]
    assert (policy["podSelector"]["matchLabels"], policy["policyTypes"]) == (labels(pods), ["Ingress", "Egress"])
    assert (peers(policy["ingress"], "from"), peers(policy["egress"], "to")) == (incoming, outgoing)


@pytest.mark.fault("compose: a pod that reaches what it does not need")
def test_no_policy_of_epams_chart_adds_to_ours() -> None:
    assert [values()[alias]["networkPolicy"] for alias in ALIASES] == [{"enabled": False}] * 3
    ports = {alias: values()[alias]["containerPorts"]["http"] for alias in ALIASES}
    assert ports == {"agent": 5030, "search": 8051, "interpreter": 8050}


@pytest.mark.fault("compose: a container of the chart with more rights than it needs")
def test_every_container_is_an_ordinary_user_without_any_right() -> None:
    for alias in ALIASES:
        assert values()[alias]["containerSecurityContext"] == {"enabled": True, **CONFINED}
    contexts = [each["securityContext"] for each in (ROUTING, *JOB["containers"])]
    assert contexts == [CONFINED] * 2
    assert JOB["automountServiceAccountToken"] is False


def test_every_container_has_limits_and_every_server_its_probes() -> None:
    limited = [*(values()[alias] for alias in ALIASES), ROUTING, *JOB["containers"]]
    for container in limited:
        assert "memory" in container["resources"]["limits"]
    for alias in ALIASES:
        probes = [values()[alias][f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
        assert all(probe["enabled"] and probe["httpGet"]["port"] == "http" for probe in probes)
        paths = [probe["httpGet"]["path"] for probe in probes]
        assert paths == ["/health", "/health", "/health" if alias == "search" else "/ready"]


@pytest.mark.fault("compose: a pod that ends during an answer or a call of code, by its times")
def test_answers_and_code_in_progress_end_before_their_pods_do() -> None:
    shutdown, leaving = int(AGENT["env"]["AGENT_SHUTDOWN_SECONDS"]), _sleep(AGENT["lifecycleHooks"])
    grace = AGENT["terminationGracePeriodSeconds"]
    assert leaving + shutdown + CLOSING_SECONDS <= grace
    assert ROUTING["restartPolicy"] == "Always"  # a sidecar, which ends after the agent
    arguments = dict(each.lstrip("-").split("=") for each in values()["interpreter"]["args"] if "=" in each)
    drain = int(arguments["drain-seconds"])
    assert 0 < drain <= values()["interpreter"]["terminationGracePeriodSeconds"] - CLOSING_SECONDS


def _sleep(hooks: dict[str, Any]) -> int:
    command, seconds = hooks["preStop"]["exec"]["command"]
    assert command == "sleep"
    return int(seconds)


def test_a_conversation_has_its_server_and_code_is_never_sent_twice() -> None:
    [cluster] = ENVOY["static_resources"]["clusters"]
    [listener] = ENVOY["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    ready, calls = (each["route"] for each in manager["route_config"]["virtual_hosts"][0]["routes"])
    assert (cluster["type"], cluster["lb_policy"]) == ("STRICT_DNS", "MAGLEV")
    for route in (ready, calls):
        assert route["hash_policy"][0] == {"header": {"header_name": AFFINITY}, "terminal": True}
    assert (calls["retry_policy"]["retry_on"], calls["timeout"]) == ("connect-failure", "0s")


@pytest.mark.system
async def test_the_job_migrates_a_store_and_does_so_before_the_pods_are_replaced(tmp_path: Path) -> None:
    hooks = [named(kind, "dial-agent-migration")["metadata"]["annotations"] for kind in ("NetworkPolicy", "Job")]
    assert {each["helm.sh/hook"] for each in hooks} == {"pre-install,pre-upgrade"}
    assert [int(each["helm.sh/hook-weight"]) for each in hooks] == [-1, 0]
    program, *arguments = JOB["containers"][0]["args"]
    given = {each["name"]: each.get("value", sqlite_url(tmp_path)) for each in JOB["containers"][0]["env"]}
    done = await dial_agent(tmp_path, *arguments, **{**given, "HOME": str(tmp_path), "AGENT_DATA_DIR": str(tmp_path)})
    assert (program, done.code, "its tables are created" in done.out) == ("dial-agent", 0, True), done.err
