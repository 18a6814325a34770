"""The properties of an application: what fits, what the operator's bounds leave of it, and what its schema says."""

import json
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from task.cli.core_config import OWN_CONFIG
from task.core_client.models import Caller, nobody
from task.errors import InvalidRequest
from task.permissions.decisions import PermissionMode
from task.product.applications import ApplicationProperties, Bounds, narrowed
from task.product.opening import opened_bare
from task.product.profile import no_tools
from task.settings.dial import ApplicationLimits
from task.settings.sections import AgentSettings
from task.tools.mcp.connection import identity_of

MOST = ApplicationLimits(steps=10, run_tokens=5000)
BOUNDS = Bounds(
    tools=["calculator", "search-*", "team.a/?"], models=["gpt-4o", "o*"], skills=["skills/public/*"], limits=MOST
)
FITTING = {
    "instructions": "Answer in one word.",
    "model": "o3-mini",
    "tools": ["search-web", "team.a/b"],
    "builtin": ["calculator"],
    "context": ["files/bucket/a%20file.pdf", "files/bucket/folder/"],
    "starters": [{"title": "Begin", "text": "Begin now."}],
    "permission_mode": "ask",
    "limits": {"steps": 10, "run_seconds": 2.5},
    "skills": ["skills/public/team/charts"],
}


def verdicts(properties: Any, bounds: Bounds = BOUNDS) -> tuple[str, list[str]]:
    """What the answer says, and the places at which the schema finds a fault."""
    found = Draft202012Validator(bounds.application_schema(())).iter_errors(properties)
    places = [".".join(map(str, error.absolute_path)) for error in found]
    try:
        bounds.check(ApplicationProperties.read(properties))
    except InvalidRequest as error:
        return str(error), places
    return "", places


def test_what_fits_and_is_within_the_bounds_is_accepted_by_the_answer_and_by_the_schema() -> None:
    assert verdicts(FITTING) == ("", [])
    assert verdicts({}) == ("", [])


@pytest.mark.fault("application: properties of wrong types, too long, or with an unknown name in them")
@pytest.mark.fault("application: a property that leaves the operator's bounds")
@pytest.mark.parametrize(
    ("properties", "place"),
    [
        ({"instructions": 7}, "instructions"),
        ({"instructions": "x" * 20_001}, "instructions"),
        ({"model": "gpt-5"}, "model"),
        ({"model": "gpt-4o\nx"}, "model"),
        ({"tools": "search-web"}, "tools"),
        ({"tools": ["search-web"] * 51}, "tools"),
        ({"tools": ["search-web", "shell"]}, "tools.1"),
        ({"tools": ["team_a/b"]}, "tools.0"),
        ({"builtin": ["*"]}, "builtin.0"),
        ({"builtin": ["fs_write"]}, "builtin.0"),
        ({"context": ["https://example.org/a.pdf"]}, "context.0"),
        ({"context": ["files/bucket"]}, "context.0"),
        ({"skills": ["skills/bucket/charts"]}, "skills.0"),
        ({"starters": [{"title": "", "text": "x"}]}, "starters.0.title"),
        ({"starters": [{"title": "x"}]}, "starters.0"),
        ({"permission_mode": "open"}, "permission_mode"),
        ({"limits": {"steps": 11}}, "limits.steps"),
        ({"limits": {"run_tokens": 5001}}, "limits.run_tokens"),
        ({"limits": {"run_seconds": 0}}, "limits.run_seconds"),
        ({"limits": {"stepz": 1}}, "limits"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_in_the_answer_and_in_the_schema(
    properties: dict[str, Any], place: str
) -> None:
    sentence, places = verdicts(properties)
    assert places == [place]
    assert f"'{place.partition('.')[0]}" in sentence
    assert sentence.startswith("The application's property ")
    assert sentence.count(". ") == 0


@pytest.mark.parametrize("properties", [None, 7, "{}", []])
def test_properties_that_are_no_object_are_refused(properties: object) -> None:
    with pytest.raises(InvalidRequest, match=r"^The application's properties do not fit: "):
        ApplicationProperties.read(properties)


def test_an_unknown_property_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"^The application's property 'skillz' does not fit: applications have "):
        ApplicationProperties.read({"skillz": []})


@pytest.mark.fault("application: thousands of properties that do not fit")
def test_many_faults_are_counted_and_not_described() -> None:
    with pytest.raises(InvalidRequest, match=r"^The application's properties do not fit: they have 2,000 faults\.$"):
        ApplicationProperties.read({f"a{number}": 0 for number in range(2_000)})


def test_the_schema_is_bare_and_says_what_is_a_file_and_who_sees_a_property() -> None:
    schema = BOUNDS.application_schema(["calculator", "fs_write"])
    assert list(schema) == ["type", "properties", "required"]
    assert "$ref" not in json.dumps(schema)
    properties = schema["properties"]
    assert [one["dial:meta"]["dial:propertyOrder"] for one in properties.values()] == list(range(1, 10))
    shown = [name for name, one in properties.items() if one["dial:meta"]["dial:propertyKind"] == "client"]
    assert shown == ["starters"]
    assert {"format": "dial-file-encoded", "dial:file": True}.items() <= properties["context"]["items"].items()
    assert properties["builtin"]["items"]["examples"] == ["calculator"]


def test_a_core_that_asks_for_no_schema_has_the_same_one_in_its_configuration() -> None:
    [entry] = json.loads(OWN_CONFIG.read_text("utf-8"))["applicationTypeSchemas"]
    assert {name: entry[name] for name in ("type", "properties", "required")} == Bounds().application_schema(())


async def test_an_application_narrows_the_profile_and_never_widens_it() -> None:
    services, profile = opened_bare("http://127.0.0.1:9")
    profile = replace(profile, agents=AgentSettings(models=["o4", "gpt-5"], steps=7))
    try:
        whole = narrowed(profile, "applications/a", ApplicationProperties.read(FITTING), BOUNDS)
        plain = narrowed(profile, "applications/b", ApplicationProperties.read({}), BOUNDS)
    finally:
        await services.close()
    assert (whole.model, whole.mode, whole.application) == ("o3-mini", PermissionMode.ASK, "applications/a")
    assert whole.prompt.startswith(profile.prompt)
    assert whole.prompt.endswith("\n\nAnswer in one word.")
    assert "\n- files/bucket/a%20file.pdf\n- files/bucket/folder/\n\n" in whole.prompt
    assert whole.names == ("search-web", "team.a/b")
    assert whole.folders == ("files/bucket/a%20file.pdf", "files/bucket/folder/")
    assert (whole.limits.steps, whole.limits.run_seconds, whole.limits.run_tokens) == (10, 2.5, 5000)
    assert [tool.name for tool in whole.kept(profile.tools)] == ["calculator"]
    assert whole.agents == plain.agents == AgentSettings(models=["o4"], steps=7)
    assert whole.workspace_tools is plain.workspace_tools is no_tools
    assert (plain.prompt, plain.model, plain.mode) == (profile.prompt, profile.model, profile.mode)
    assert plain.limits.run_seconds == profile.limits.run_seconds


async def test_a_list_of_tools_that_is_read_with_a_users_key_is_one_applications() -> None:
    callers = [
        Caller("key", nobody, application=application) for application in ("", "applications/a", "applications/b")
    ]
    partitions = {(await identity_of(caller, forward_key=True)).partition for caller in callers}
    assert len(partitions) == 3
