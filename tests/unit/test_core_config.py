"""core_config/: what it offers, that every Core it is for starts with it, and what is reported of a faulty file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from task.cli.core_config import NEWEST, OLDEST, OWN_CONFIG, Version, parsed_version, render_config
from task.conversation.messages import PICTURES
from task.documents.extract import BY_TYPE
from task.errors import SettingsError
from task.local.core.config import CoreApplication, Features, Model, ProjectKey, Toolset
from task.settings import Settings
from tests.support.compose import FILLED, container_environment

CONFIG: dict[str, Any] = json.loads(OWN_CONFIG.read_text(encoding="utf-8"))
SCHEMA: dict[str, Any] = json.loads(OWN_CONFIG.with_name("schema.json").read_text(encoding="utf-8"))
KEYS = {"DIAL_API_KEY": "a-key-of-ours", "OPENAI_API_KEY": "a-key-of-theirs"}
# Documented for applications and their features, beside those of the configuration itself.
APPLICATION = (
    "displayVersion userRoles descriptionKeywords maxRetryAttempts author dependencies viewerUrl editorUrl defaults "
    "interceptors mcp routes applicationTypeSchemaId applicationProperties interfaces"
)
FEATURES = (
    "tokenizeEndpoint truncatePromptEndpoint systemPromptSupported toolsSupported seedSupported allowResume "
    "accessibleByPerRequestKey contentPartsSupported temperatureSupported parallelToolCallsSupported cacheSupported "
    "autoCachingSupported consentRequired supportCommentInRateResponse reasoningEfforts"
)


def limit(role: str, model: str, window: str) -> int:
    return int(CONFIG["roles"][role]["limits"][model][window])


def test_core_lists_the_agent_as_people_find_it_in_the_marketplace() -> None:
    agent = CONFIG["applications"]["general-purpose-agent"]
    assert agent["displayName"] == "General Purpose Agent"
    for offer in ("file extraction", "RAG", "web search", "Python code interpreter", "image generation"):
        assert offer in agent["description"]
    assert agent["iconUrl"]


@pytest.mark.fault("file: a type of file that the chat does not offer")
def test_people_can_attach_every_kind_of_file_that_the_agent_reads_or_shows_to_a_model() -> None:
    printed = json.loads(render_config(OWN_CONFIG, {"OPENAI_API_KEY": "one", "DIAL_API_KEY": "two"}))
    for config in (CONFIG, printed):
        declared = config["applications"]["general-purpose-agent"]["inputAttachmentTypes"]
        assert sorted(declared) == sorted({*PICTURES, *BY_TYPE})
        assert sorted(config["models"]["gpt-4o"]["inputAttachmentTypes"]) == sorted(PICTURES)


def test_pictures_come_from_a_model_that_core_limits_and_the_adapter_serves_as_one() -> None:
    painter = Settings().deployments.image
    adapter = container_environment("adapter-openai", FILLED)
    assert container_environment("agent", FILLED)["AGENT_DEPLOYMENTS__IMAGE"] == painter
    assert painter in adapter["DALLE3_DEPLOYMENTS"].split(",")
    assert (adapter["DIAL_USE_FILE_STORAGE"], adapter["DIAL_URL"]) == ("True", "http://core:8080")
    [upstream] = CONFIG["models"][painter]["upstreams"]
    assert upstream["endpoint"].endswith("/images/generations")
    assert 0 < limit("default", painter, "requestHour") <= limit("default", painter, "requestDay")


def test_the_limits_of_the_default_role_hold_a_demonstration_of_fifty_people_and_guests_get_less() -> None:
    people, requests_a_minute, tokens = 50, 2, 10_000
    assert limit("default", "gpt-4o", "minute") >= people * requests_a_minute * tokens
    for model, window in (("gpt-4o", "day"), ("dall-e-3", "requestDay")):
        assert 0 < limit("guest", model, window) < limit("default", model, window)
    assert set(CONFIG["models"]) == {"gpt-4o", "dall-e-3"}


def test_the_configuration_holds_no_key_but_names_where_it_comes_from() -> None:
    keys = [*CONFIG["keys"], *(up["key"] for model in CONFIG["models"].values() for up in model["upstreams"])]
    assert keys
    assert all(re.fullmatch(r"\$\{env:[A-Z_]+\}", key) for key in keys)
    given = container_environment("core-config", FILLED)
    assert {key.removeprefix("${env:").rstrip("}") for key in keys} <= set(given)


def rendered(version: Version = NEWEST) -> dict[str, Any]:
    return json.loads(render_config(OWN_CONFIG, KEYS, version=version))


def fields(name: str) -> set[str]:
    return set(SCHEMA["$defs"][name]["properties"])


def test_the_schema_has_every_documented_field() -> None:
    assert set(APPLICATION.split()) <= fields("application")
    assert set(FEATURES.split()) <= fields("features")
    assert set(CONFIG) <= set(SCHEMA["properties"])


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("application", CoreApplication),
        ("features", Features),
        ("key", ProjectKey),
        ("model", Model),
        ("toolset", Toolset),
    ],
)
def test_what_local_core_reads_is_what_the_schema_allows(name: str, model: type[BaseModel]) -> None:
    assert {to_camel(field) for field in model.model_fields} - {"name"} <= fields(name)


def test_the_file_starts_every_core_since_037_as_it_is() -> None:
    assert rendered((0, 37)) == rendered() == json.loads(render_config(OWN_CONFIG, KEYS))
    assert rendered((0, 36)) != rendered()


@pytest.mark.fault("compose: a version of Core that is none or too old, and a field that an older Core refuses")
def test_for_an_older_core_the_file_has_no_field_that_it_refuses_and_keeps_all_others() -> None:
    older, newer = rendered(OLDEST), rendered()
    assert newer.keys() - older.keys() == {"toolsets"}
    features = [config["applications"]["general-purpose-agent"].pop("features") for config in (older, newer)]
    assert features[1].keys() - features[0].keys() == {"assistantAttachmentsInRequestSupported"}
    newer.pop("toolsets")
    assert older == newer
    assert all(since <= OLDEST for since in used(older, SCHEMA))


def used(value: Any, node: Any) -> Iterator[Version]:
    """The versions since which Core knows the fields of the value."""
    if not isinstance(value, dict) or not isinstance(node, dict):
        return
    node = {**node, **SCHEMA["$defs"][node["$ref"].rpartition("/")[2]]} if "$ref" in node else node
    yield parsed_version(node.get("x-since", "0.25"))
    for name, inner in value.items():
        yield from used(inner, node.get("properties", {}).get(name, node.get("additionalProperties")))


@pytest.mark.parametrize(("text", "version"), [("0.25.0-rc", (0, 25)), ("0.36.1", (0, 36)), ("1.0", (1, 0))])
def test_a_version_of_core_is_its_first_two_numbers(text: str, version: Version) -> None:
    assert parsed_version(text) == version


@pytest.mark.fault("compose: a version of Core that is none or too old, and a field that an older Core refuses")
@pytest.mark.parametrize("version", ["0.24", "newest", "1", "0.46; rm", ""])
def test_a_version_that_core_never_had_or_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match=r"not a version of DIAL Core such as 0\.46, at least 0\.25"):
        parsed_version(version)


FAULTS: list[tuple[str, str, str]] = [
    ('"type": "chat",', '"type": "chat"', "is not valid JSON"),
    ('"displayName": "GPT 4o"', '"displayNam": "GPT 4o"', "models.gpt-4o: .*'displayNam' was unexpected"),
    ('"maxTotalTokens": 128000', '"maxTotalTokens": "many"', r"models\.gpt-4o\.limits\.maxTotalTokens: not valid"),
    ('"gpt-4o": { "minute"', '"gpt-4": { "minute"', r"roles\.default\.limits\.gpt-4: no such deployment.*gpt-4o"),
    ('"project": "GENERAL-PURPOSE-AGENT", ', "", "keys.…: not valid"),
    ('"http://agent:5030/openai', '"agent:5030/openai', "general-purpose-agent.endpoint: not valid"),
    ('"displayName": "GPT 4o"', '"displayName": "GPT \udcff"', "is not UTF-8"),
]


@pytest.mark.fault("compose: a malformed configuration of Core")
@pytest.mark.fault("compose: an unknown model in Core's configuration")
@pytest.mark.parametrize(("correct", "wrong", "report"), FAULTS, ids=[fault[2][:30] for fault in FAULTS])
def test_a_faulty_configuration_is_one_line_with_the_file_the_place_and_the_fix(
    correct: str, wrong: str, report: str, tmp_path: Path
) -> None:
    text = OWN_CONFIG.read_text(encoding="utf-8")
    assert correct in text
    path = tmp_path / "config.json"
    path.write_text(text.replace(correct, wrong, 1), encoding="utf-8", errors="surrogateescape")
    with pytest.raises(SettingsError) as refused:
        render_config(path, KEYS)
    line = str(refused.value)
    assert re.search(report, line)
    assert line.startswith(str(path))
    assert ("\n" in line, "Correct it" in line or "Choose among" in line) == (False, True)
    assert not any(key in line for key in KEYS.values())
